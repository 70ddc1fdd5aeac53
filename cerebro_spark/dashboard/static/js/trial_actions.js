// What can be done with one trial: a button in each row of the table, and one menu for all of them.

import { h, setAttr } from "./dom.js";

/** The commands that make sense for a trial in this state. */
export function verbsOf(trial) {
  const goesOn = trial.status === "running" || trial.status === "paused";
  return [...(goesOn ? ["stop_trial"] : []), ...(trial.status === "stopped" || trial.status === "finished" ? ["resume_trial"] : []), "clone"];
}

const WORDS = { stop_trial: "Stop…", resume_trial: "Resume…", clone: "Clone…" };

/** The menu of the trial whose button was pressed. It is no part of a row: news move rows, and make them anew. */
export class TrialMenu {
  /**
   * @param {Store} store The trials of the run.
   * @param {Commands} commands What can be asked of the run.
   */
  constructor(store, commands) {
    Object.assign(this, { store, commands, id: null, list: null });
    this.node = h("div", { class: "menu", onkeydown: (event) => this.keyed(event), onfocusout: (event) => this.left(event.relatedTarget) });
    this.buttons = new Map();
  }

  get isOpen() {
    return this.list !== null;
  }

  /** The button of a trial; it takes the place of the one that the trial had before. */
  buttonOf(id) {
    const toggle = () => (this.id === id ? this.leave() : this.open(id));
    // It is heard when it is pressed, not when it is let go: a row that moves in between takes the click away. What is
    // left of clicks comes from the keyboard: `detail` counts those of a pointer.
    const press = (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      toggle();
    };
    const button = h("button", { type: "button", class: "icon-button", "aria-label": `Commands for ${id}`, "aria-haspopup": "true", onmousedown: press, onclick: (event) => event.detail === 0 && toggle() }, "⋯");
    button.update = () => {
      button.hidden = !this.verbs(id).length;
      setAttr(button, "aria-expanded", this.id === id);
    };
    this.buttons.set(id, button);
    return button;
  }

  verbs(id) {
    const trial = this.store.trials.get(id);
    return trial ? verbsOf(trial).filter((verb) => this.commands.can(verb)) : [];
  }

  open(id) {
    this.close();
    const items = this.verbs(id).map((verb) => h("button", { type: "button", role: "menuitem", onclick: () => this.choose(verb) }, WORDS[verb]));
    // The run may have ended a moment ago.
    if (!items.length) return;
    this.id = id;
    this.list = h("div", { class: "menu-list", role: "menu", "aria-label": `Commands for ${id}` }, items);
    this.node.append(this.list);
    place(this.buttons.get(id), this.list);
    this.buttons.get(id).update();
    items[0].focus();
  }

  close() {
    // Removing what has the focus moves the focus, which closes the menu: by then it is closed.
    const { id, list } = this;
    Object.assign(this, { id: null, list: null });
    list?.remove();
    this.buttons.get(id)?.update();
  }

  /** Close it, and give the focus back to its button. */
  leave() {
    const button = this.buttons.get(this.id);
    this.close();
    button.focus();
  }

  choose(verb) {
    const { id } = this;
    this.leave();
    this.commands.open(verb, { trial: this.store.trials.get(id) });
  }

  /** The focus went elsewhere. Its own button closes the menu by itself. */
  left(target) {
    if (this.isOpen && !this.node.contains(target) && target !== this.buttons.get(this.id)) this.close();
  }

  keyed(event) {
    if (!this.isOpen) return;
    if (event.key === "Escape") {
      this.leave();
      return;
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const items = [...this.list.children];
    items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
  }

  /** Close the menu if its trial or its commands are gone. */
  update() {
    if (this.isOpen && !this.verbs(this.id).length) this.close();
  }
}

/** The table scrolls sideways and would cut the menu off: it lies over the page instead. */
function place(button, list) {
  const { bottom, top, right } = button.getBoundingClientRect();
  list.style.position = "fixed";
  list.style.right = `${Math.max(8, innerWidth - right)}px`;
  const below = bottom + 4 + list.offsetHeight < innerHeight;
  list.style.top = `${below ? bottom + 4 : Math.max(8, top - 4 - list.offsetHeight)}px`;
}
