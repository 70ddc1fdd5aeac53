// The page of one run.

import { server } from "./api.js";
import { ClusterCard } from "./cluster.js";
import { Commands } from "./commands.js";
import { CurvesCard } from "./curves.js";
import { emptyState, h, pill, reconcile, setText } from "./dom.js";
import { CommandsCard, EventsCard } from "./events.js";
import { Figures } from "./figures.js";
import { ForecastCard } from "./forecast.js";
import { clock, count, plural } from "./format.js";
import { GanttCard } from "./gantt.js";
import { swatchColour } from "./highlight.js";
import { ParamsCard } from "./params.js";
import { links } from "./router.js";
import { RunStore } from "./run_store.js";
import { TrialsCard } from "./trials_table.js";

const PARTS = [["curves", "Curves"], ["params", "Params"], ["trials", "Trials"], ["gantt", "Workers over time"], ["cluster", "Cluster"], ["events", "Events"], ["forecast", "Forecast"], ["commands", "Commands"]];
const STATE_WORDS = { interrupted: "interrupted: it is not finished and has no driver", silent: "silent: its driver gave no sign of life for half a minute" };
const MOST_CHIPS = 6;

export class RunPage {
  constructor({ run, part }, shell) {
    this.run = run;
    this.part = part;
    this.title = run;
    this.crumbs = [["Runs", links.runs()], [run, null]];
    this.node = h("div", {}, h("div", { class: "head" }, h("h1", {}, run)), h("div", { class: "skeleton" }), h("br"), h("div", { class: "skeleton tall" }));
    this.store = new RunStore(run);
    this.ends = [this.store.on(["run"], () => this.begin()), this.store.on(["link", "run"], () => shell.link(this.store.linkState))];
    this.store.open();
  }

  /** Another part of the same page was asked for. */
  go({ part }) {
    this.part = part;
    this.jump();
  }

  close() {
    this.closed = true;
    this.ends.forEach((end) => end());
    this.parts?.forEach((part) => part.close());
    this.store.close();
  }

  async begin() {
    if (this.parts) return this.update();
    if (this.store.problem) return this.showProblem(this.store.problem);
    if (!this.store.summary || this.building) return null;
    this.building = true;
    const facts = await server().catch((error) => this.showProblem(error));
    if (facts && !this.closed) this.build(facts);
    this.building = false;
    return null;
  }

  showProblem(error) {
    const again = h("button", { type: "button", class: "button", onclick: () => this.store.load() }, "Try again");
    const title = error.status === 404 ? "There is no such run" : "This run cannot be shown";
    this.node.replaceChildren(h("div", { class: "card" }, emptyState(title, error.message, h("div", { class: "actions" }, again, h("a", { class: "button", href: links.runs() }, "All runs")), false)));
  }

  build(facts) {
    const { store } = this;
    const commands = new Commands(store, facts);
    const figures = new Figures(store);
    const curves = new CurvesCard(store);
    const params = new ParamsCard(store);
    const trials = new TrialsCard(store, commands);
    const gantt = new GanttCard(store);
    const cluster = new ClusterCard(store, commands);
    const events = new EventsCard(store);
    const forecast = new ForecastCard(store);
    const given = new CommandsCard(store);
    this.commands = commands;
    this.parts = [commands, figures, curves, params, trials, gantt, cluster, events, forecast, given];
    const side = h("div", { class: "third stack" }, forecast.node, given.node);
    const grid = h("div", { class: "grid" }, curves.node, params.node, trials.node, gantt.node, cluster.node, events.node, side);
    this.node.replaceChildren(this.makeHead(), figures.live, figures.node, this.makeLocal(), grid);
    this.ends.push(store.on(["selection"], () => this.showChosen()));
    this.parts.forEach((part) => part.update?.());
    this.update();
    this.jump();
  }

  makeHead() {
    this.state = pill("running");
    this.line = h("p", { class: "head-line" });
    this.trouble = h("p", { class: "answer", role: "alert", hidden: true, data: { state: "refused" } });
    const act = (verb, text, kind = "") => h("button", { type: "button", class: `button ${kind}`, onclick: () => this.commands.open(verb) }, text);
    this.buttons = { pause: act("pause", "Pause…"), unpause: act("unpause", "Unpause…", "main"), add_workers: act("add_workers", "Add workers…"), end: act("end", "End…", "danger"), kill: act("kill", "Kill…", "danger") };
    const shown = this.commands.allowed ? h("div", { class: "actions", role: "group", "aria-label": "Commands for the run" }, Object.values(this.buttons)) : null;
    return h("div", { class: "head" }, h("div", {}, h("div", { class: "head-title" }, h("h1", {}, this.run), this.state), this.line, this.trouble), shown);
  }

  makeLocal() {
    const items = PARTS.map(([part, text]) => h("li", {}, h("a", { href: links.run(this.run, part) }, text)));
    this.chosen = h("div", { class: "chosen-bar", hidden: true, role: "group", "aria-label": "Selected trials" });
    this.chips = h("span", { class: "chosen-bar" });
    this.chosenWords = h("span", { class: "muted" });
    const clear = h("button", { type: "button", class: "button small quiet", onclick: () => this.store.select([...this.store.selection], false) }, "Clear");
    this.chosen.append(this.chosenWords, this.chips, clear);
    return h("nav", { class: "local", "aria-label": "Parts of this page" }, h("ul", {}, items), this.chosen);
  }

  showChosen() {
    const ids = [...this.store.selection];
    this.chosen.hidden = !ids.length;
    setText(this.chosenWords, `${count(ids.length)} selected${ids.length > MOST_CHIPS ? ", such as" : ""}`);
    reconcile(this.chips, ids.slice(0, MOST_CHIPS), (id) => id, (id) => this.chipOf(id));
  }

  chipOf(id) {
    const swatch = h("span", { class: "swatch", vars: { "--swatch": swatchColour(this.store, id) } });
    return h("button", { type: "button", class: "chip", "aria-label": `Take ${id} out of the selection`, onclick: () => this.store.toggle(id) }, swatch, id, h("span", { "aria-hidden": "true" }, "✕"));
  }

  update() {
    const { summary } = this.store;
    if (!summary || !this.parts) return;
    this.state.update(summary.state);
    setText(this.line, this.inWords(summary));
    const trouble = this.store.gone ?? summary.problem ?? (STATE_WORDS[summary.state] && `This run is ${STATE_WORDS[summary.state]}.`);
    this.trouble.hidden = !trouble;
    setText(this.trouble, trouble ?? "");
    const { over } = this.store;
    for (const [verb, button] of Object.entries(this.buttons)) button.hidden = over || !this.commands.can(verb);
    if (summary.paused) this.buttons.pause.hidden = true;
    else this.buttons.unpause.hidden = true;
  }

  inWords({ objective, settings, started_clock: started, hosts }) {
    const goal = objective ? `${objective.mode === "max" ? "Highest" : "Lowest"} ${objective.metric}` : "No objective";
    const data = settings ? `, ${count(settings.rows)} rows in ${plural(settings.partitions, "partition")}` : "";
    const place = hosts?.length ? `, on ${plural(hosts.length, "host")}` : "";
    return `${goal}${data}${place}${started ? `, started at ${clock(started)}` : ""}`;
  }

  jump() {
    const target = this.part && this.node.querySelector(`#part-${CSS.escape(this.part)}`);
    if (!target) return;
    target.scrollIntoView();
    target.focus({ preventScroll: true });
  }
}
