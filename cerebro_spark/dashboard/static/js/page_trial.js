// The page of one trial: its curves, params, where it came from, its units, and what went wrong.

import { get, runPath, server } from "./api.js";
import { Commands } from "./commands.js";
import { emptyState, h, pill, reconcile, setText } from "./dom.js";
import { commandItem, eventItem } from "./events.js";
import { metric as metricText, param, plural, stopwatch } from "./format.js";
import { links } from "./router.js";
import { RunStore } from "./run_store.js";
import { verbsOf } from "./trial_actions.js";
import { TrialCharts } from "./trial_charts.js";
import { TrialUnits } from "./trial_units.js";

const REFRESH = 2000;
const BUTTONS = [["stop_trial", "Stop…", "danger"], ["resume_trial", "Resume…", "main"], ["clone", "Clone…", ""]];

export class TrialPage {
  constructor({ run, trial }, shell) {
    Object.assign(this, { run, id: trial, answer: null });
    this.title = `${trial} of ${run}`;
    this.crumbs = [["Runs", links.runs()], [run, links.run(run)], [trial, null]];
    this.node = h("div", {}, h("div", { class: "head" }, h("h1", {}, trial)), h("div", { class: "skeleton tall" }));
    this.store = new RunStore(run);
    this.ends = [
      this.store.on(["link", "run"], () => shell.link(this.store.linkState)),
      this.store.on(["trials", "commands", "run"], () => this.follow()),
    ];
    this.store.open();
    this.load();
  }

  close() {
    this.closed = true;
    clearTimeout(this.soon);
    this.ends.forEach((end) => end());
    [this.commands, this.charts].forEach((part) => part?.close());
    this.store.close();
  }

  /** Ask again if the trial, or what it was told, has changed; not more often than every two seconds. */
  follow() {
    if (this.built) this.showHead();
    const known = this.store.trials.get(this.id);
    const commands = [...this.store.commands.values()].filter(({ trial }) => trial === this.id).map(({ id, state }) => [id, state]);
    const key = JSON.stringify([known, commands]);
    if (!known || key === this.known) return;
    // What is known first was asked for when the page began, unless the log was not read that far then.
    const asked = this.known === undefined && !this.problem;
    this.known = key;
    if (!asked) this.loadSoon();
  }

  loadSoon() {
    this.soon ??= setTimeout(() => {
      this.soon = null;
      this.load();
    }, REFRESH);
  }

  async load() {
    const { known } = this;
    try {
      const [facts, answer] = await Promise.all([server(), get(runPath(this.run, `/trials/${encodeURIComponent(this.id)}`))]);
      if (this.closed) return;
      this.answer = answer;
      if (!this.built) this.build(facts);
      this.update();
    } catch (error) {
      if (this.built || this.closed) return;
      this.showProblem(error);
      // The trial came while it was asked for.
      if (this.known !== known) this.loadSoon();
    }
  }

  showProblem(error) {
    this.problem = error;
    const again = h("button", { type: "button", class: "button", onclick: () => this.load() }, "Try again");
    const title = error.status === 404 ? "There is no such trial" : "This trial cannot be shown";
    this.node.replaceChildren(h("div", { class: "card" }, emptyState(title, error.message, h("div", { class: "actions" }, again, h("a", { class: "button", href: links.run(this.run) }, "The run")), false)));
  }

  build(facts) {
    this.built = true;
    this.commands = new Commands(this.store, facts);
    this.state = pill("running");
    this.line = h("p", { class: "head-line" });
    this.buttons = new Map(BUTTONS.map(([verb, text, kind]) => [verb, h("button", { type: "button", class: `button ${kind}`, onclick: () => this.commands.open(verb, { trial: this.trial }) }, text)]));
    const actions = this.commands.allowed ? h("div", { class: "actions", role: "group", "aria-label": `Commands for ${this.id}` }, ...this.buttons.values()) : null;
    const head = h("div", { class: "head" }, h("div", {}, h("div", { class: "head-title" }, h("h1", {}, this.id), this.state), this.line), actions);
    this.error = h("div", { class: "wide", hidden: true });
    this.charts = new TrialCharts();
    this.units = new TrialUnits();
    this.facts = card("Params", "");
    this.lineage = card("Lineage", "");
    this.works = card("What was asked of it", "");
    this.events = card("Events and commands", "wide");
    this.node.replaceChildren(head, h("div", { class: "grid" }, this.error, this.charts.node, h("div", { class: "third stack" }, this.facts.node, this.lineage.node, this.works.node), this.units.node, this.events.node));
  }

  /** The trial as the stream has it, or as it was loaded: whichever is newer. */
  get trial() {
    return this.store.trials.get(this.id) ?? this.answer.trial;
  }

  showHead() {
    const { trial } = this;
    const { objective } = this.store;
    this.state.update(trial.status);
    const best = typeof trial.best_value === "number" ? `, best ${objective?.metric ?? ""} ${metricText(trial.best_value)} in epoch ${trial.best_epoch}` : "";
    setText(this.line, `Epoch ${trial.last} of ${trial.until}, ${plural(trial.units, "unit")} done${best}${trial.by_command ? ", asked for by a person" : ""}`);
    const verbs = new Set(verbsOf(trial));
    for (const [verb, button] of this.buttons) button.hidden = !verbs.has(verb) || !this.commands.can(verb);
  }

  update() {
    const { answer } = this;
    this.showHead();
    this.showError(answer);
    this.charts.update(answer.curves, this.store.objective);
    this.units.update(answer.units);
    this.facts.body.replaceChildren(factsOf(answer.trial.params));
    this.lineage.body.replaceChildren(this.lineageOf(answer));
    this.works.body.replaceChildren(worksOf(this.run, answer.works));
    this.showEvents(answer);
  }

  showError({ error, failures, failed }) {
    const blamed = failures.filter((failure) => failure.text !== error);
    this.error.hidden = !error && !failures.length;
    if (this.error.hidden) return;
    const key = JSON.stringify([error, failures, failed]);
    if (key === this.errorKey) return;
    this.errorKey = key;
    const whole = error ? [h("h3", {}, "Why it failed"), trace(error, "The error, with its traceback")] : [];
    const rest = blamed.map((failure) => h("details", { class: "chart-data" }, h("summary", {}, `${stopwatch(failure.at)}: epoch ${failure.epoch} on ${failure.partition} failed at ${failure.worker}, ${blame(failure.blame)}`), trace(failure.text, "The error of this unit")));
    const title = error ? "This trial failed" : `${plural(failed, "unit")} of this trial failed and ${failed === 1 ? "was" : "were"} done again`;
    const body = h("div", { class: "card-body stack" }, whole, blamed.length && error ? h("h3", {}, "Units that failed") : null, rest);
    this.error.replaceChildren(h("section", { class: "card trouble", "aria-label": "Failures" }, h("div", { class: "card-head" }, h("h2", {}, title)), body));
  }

  lineageOf({ ancestors, children }) {
    if (!ancestors.length && !children.length) return emptyState("On its own", "It began with fresh weights, and no other trial went on from it.");
    // A clone may take over the params only.
    const link = ({ trial, epoch }, words) => [h("a", { href: links.trial(this.run, trial) }, trial), h("span", { class: "muted" }, epoch === null ? "cloned, with fresh weights" : `${words} epoch ${epoch}`)];
    const self = h("li", {}, h("span", { class: "lineage-self" }, this.id), h("span", { class: "muted" }, "this trial"));
    const below = children.map((child) => h("li", {}, "↳ ", link(child, "went on from its")));
    // They come nearest first; the oldest is to be on top.
    const above = ancestors.toReversed().map((one) => h("li", {}, link(one, "weights of")));
    return h("ul", { class: "lineage" }, above, h("li", { class: "lineage-group" }, h("ul", { class: "lineage" }, self, below)));
  }

  showEvents({ events, commands }) {
    this.list ??= h("ol", { class: "events" });
    if (!events.length && !commands.length) {
      this.events.body.replaceChildren(emptyState("Nothing to tell", "Failures, stops and commands are listed here."));
      return;
    }
    const rows = [...events.map((event) => ({ key: `e${event.n}`, event })), ...commands.map((command) => ({ key: `c${command.id}${command.state}`, command }))];
    reconcile(this.list, rows.toReversed(), ({ key }) => key, ({ event, command }) => plainNode(event ? eventItem(this.run, event) : commandItem(command), command));
    if (this.list.parentNode !== this.events.body) this.events.body.replaceChildren(this.list);
  }
}

/** Its rows never change: let reconcile leave them alone. */
function plainNode(node, command) {
  node.update?.(command);
  node.update = undefined;
  return node;
}

function card(title, width) {
  const body = h("div", { class: "card-body" });
  return { body, node: h("section", { class: `card ${width}`, "aria-label": title }, h("div", { class: "card-head" }, h("h2", {}, title)), body) };
}

function trace(text, name) {
  return h("pre", { class: "trace", tabindex: "0", role: "region", "aria-label": name }, text);
}

function blame(who) {
  return { trial: "through its own code or numbers", worker: "through the worker", store: "through the store" }[who] ?? "";
}

function factsOf(params) {
  const names = Object.keys(params).sort();
  if (!names.length) return emptyState("No params", "");
  return h("dl", { class: "facts" }, names.map((name) => [h("dt", {}, name), h("dd", {}, param(params[name]))]));
}

function worksOf(run, works) {
  if (!works.length) return emptyState("Nothing yet", "");
  const rows = works.map(({ at, until, from, counted, params }, i) => {
    const changed = i ? Object.keys(params).filter((name) => JSON.stringify(params[name]) !== JSON.stringify(works[i - 1].params[name])) : [];
    const differs = changed.length ? `, with ${changed.map((name) => `${name} ${param(params[name])}`).join(", ")}` : "";
    const source = from ? [", from the weights of ", h("a", { href: links.trial(run, from.trial) }, from.trial), `, epoch ${from.epoch}`] : [];
    return h("li", {}, h("time", {}, stopwatch(at)), h("p", {}, `train until epoch ${until}${differs}`, source, counted ? "" : " (too late: it was stopped)"));
  });
  return h("ol", { class: "events" }, rows);
}
