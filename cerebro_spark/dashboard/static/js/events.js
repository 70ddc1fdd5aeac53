// What happened, in words, newest first; and the commands that people gave.

import { emptyState, h, pill, reconcile, setText } from "./dom.js";
import { clock, count, stopwatch } from "./format.js";
import { links } from "./router.js";

const LEVELS = { warning: "Warning: ", error: "Error: " };

/** One event. */
export function eventItem(run, event) {
  const when = h("time", { title: event.clock ? clock(event.clock, true) : null }, event.clock ? clock(event.clock, true) : stopwatch(event.at));
  const level = event.kind.startsWith("Command") && event.level === "info" ? "command" : event.level;
  const words = h("p", {}, LEVELS[event.level] && h("span", { class: "unseen" }, LEVELS[event.level]), event.text, " ", event.trial && h("a", { href: links.trial(run, event.trial), "aria-label": `Open ${event.trial}` }, "→"));
  return h("li", { data: { level } }, when, words);
}

export class EventsCard {
  constructor(store) {
    this.store = store;
    this.list = h("ol", { reversed: true });
    this.frame = h("div", { class: "events", tabindex: "0", role: "region", "aria-label": "Events, newest first" }, this.list);
    this.box = h("input", { type: "checkbox", onchange: () => this.update() });
    this.more = h("button", { type: "button", class: "button small", onclick: () => this.earlier() }, "Earlier events");
    this.said = h("span");
    this.none = h("div");
    const head = h("div", { class: "card-head" }, h("h2", {}, "Events"), h("label", { class: "inline-field" }, this.box, "Only problems and commands"));
    this.node = h("section", { class: "card two-thirds", id: "part-events", tabindex: "-1", "aria-label": "Events" }, head, h("div", { class: "card-body" }, this.frame, this.none), h("div", { class: "card-foot" }, this.said, this.more));
    this.ends = [store.on(["events"], () => this.update())];
    this.update();
  }

  close() {
    this.ends.forEach((end) => end());
  }

  async earlier() {
    this.more.disabled = true;
    try {
      await this.store.earlierEvents();
    } catch (error) {
      setText(this.said, error.message);
    }
    this.more.disabled = false;
  }

  update() {
    const { events, parts, run } = this.store;
    const wanted = this.box.checked ? events.rows.filter((event) => event.level !== "info" || event.kind.startsWith("Command")) : events.rows;
    // A reader of older events is not to be moved by new ones.
    const above = this.frame.scrollHeight - this.frame.scrollTop;
    const held = this.frame.scrollTop > 8;
    reconcile(this.list, wanted.toReversed(), (event) => event.n, (event) => eventItem(run, event));
    if (held) this.frame.scrollTop = this.frame.scrollHeight - above;
    this.frame.hidden = !wanted.length;
    const problem = parts.events.problem;
    const nothing = wanted.length ? null : problem ? ["Events cannot be loaded", problem.message] : parts.events.loaded ? ["Nothing to tell", this.box.checked ? "There were no problems and no commands." : "Events appear as the run goes on."] : ["Loading the events", ""];
    this.none.replaceChildren(...(nothing ? [emptyState(...nothing)] : []));
    setText(this.said, `${count(wanted.length)} shown`);
    this.more.hidden = !events.more;
  }
}

/** The commands of a run, newest first, with their answers. */
export class CommandsCard {
  constructor(store) {
    this.store = store;
    this.list = h("ol");
    this.frame = h("div", { class: "events", tabindex: "0", role: "region", "aria-label": "Commands, newest first" }, this.list);
    this.none = h("div");
    this.node = h("section", { class: "card", id: "part-commands", tabindex: "-1", "aria-label": "Commands" }, h("div", { class: "card-head" }, h("h2", {}, "Commands")), h("div", { class: "card-body" }, this.frame, this.none));
    this.ends = [store.on(["commands"], () => this.update())];
    this.update();
  }

  close() {
    this.ends.forEach((end) => end());
  }

  update() {
    const commands = [...this.store.commands.values()].toReversed();
    reconcile(this.list, commands, (command) => command.id, commandItem);
    this.frame.hidden = !commands.length;
    if (commands.length) this.none.replaceChildren();
    else this.none.replaceChildren(emptyState("No commands yet", "What people tell this run, and what it answers, is listed here."));
  }
}

/** One command with its answer. */
export function commandItem(command) {
  const state = pill("sent");
  const reason = h("p", { class: "muted" });
  const when = h("time", {}, clock(command.sent_clock ?? command.clock, true));
  const node = h("li", {}, when, h("div", {}, h("p", {}, command.words, command.by && h("span", { class: "muted" }, ` by ${command.by}`), " ", state), reason));
  node.update = (now) => {
    state.update({ sent: "waiting", received: "waiting" }[now.state] ?? now.state, now.state);
    setText(reason, now.reason);
  };
  return node;
}
