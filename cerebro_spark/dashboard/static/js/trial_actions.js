// What can be done with one trial: a small menu in each row of the table.

import { h } from "./dom.js";

/** The commands that make sense for a trial in this state. */
export function verbsOf(trial) {
  const goesOn = trial.status === "running" || trial.status === "paused";
  return [...(goesOn ? ["stop_trial"] : []), ...(trial.status === "stopped" || trial.status === "finished" ? ["resume_trial"] : []), "clone"];
}

const WORDS = { stop_trial: "Stop…", resume_trial: "Resume…", clone: "Clone…" };

/** A button that opens the menu. The menu is made when it is opened: a page has many rows. */
export function trialActions(commands, id) {
  let trial = null;
  let list = null;
  const button = h("button", { type: "button", class: "icon-button", "aria-label": `Commands for ${id}`, "aria-haspopup": "true", "aria-expanded": "false", onclick: () => (list ? close() : open()) }, "⋯");
  const node = h("div", { class: "menu", onkeydown: (event) => keyed(event), onfocusout: (event) => !node.contains(event.relatedTarget) && close() }, button);
  const verbs = () => verbsOf(trial).filter((verb) => commands.can(verb));
  const choose = (verb) => {
    close();
    button.focus();
    commands.open(verb, { trial });
  };
  const open = () => {
    const items = verbs().map((verb) => h("button", { type: "button", role: "menuitem", onclick: () => choose(verb) }, WORDS[verb]));
    // The run may have ended a moment ago.
    if (!items.length) return;
    list = h("div", { class: "menu-list", role: "menu", "aria-label": `Commands for ${id}` }, items);
    node.append(list);
    place(button, list);
    button.setAttribute("aria-expanded", "true");
    items[0].focus();
  };
  const close = () => {
    // Removing what has the focus moves the focus, which closes the menu: by then it is closed.
    const gone = list;
    list = null;
    gone?.remove();
    button.setAttribute("aria-expanded", "false");
  };
  const keyed = (event) => {
    if (!list) return;
    if (event.key === "Escape") {
      close();
      button.focus();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const items = [...list.children];
    items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
  };
  node.update = (now) => {
    trial = now;
    button.hidden = !verbs().length;
    if (button.hidden) close();
  };
  return node;
}

/** The table scrolls sideways and would cut the menu off: it lies over the page instead. */
function place(button, list) {
  const { bottom, top, right } = button.getBoundingClientRect();
  list.style.position = "fixed";
  list.style.right = `${Math.max(8, innerWidth - right)}px`;
  const below = bottom + 4 + list.offsetHeight < innerHeight;
  list.style.top = `${below ? bottom + 4 : Math.max(8, top - 4 - list.offsetHeight)}px`;
}
