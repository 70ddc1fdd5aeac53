// When the run will be done, and what would follow from a command.

import { h, emptyState, reconcile, setText } from "./dom.js";
import { clock, duration } from "./format.js";
import { forecastWords } from "./figures.js";

const QUESTIONS = { stop_trial: "stop", resume_trial: "resume", clone: "clone", add_workers: "add workers:", remove_worker: "remove", pause: "pause", unpause: "unpause", end: "end the run", kill: "kill the run" };

/** A question of the forecast in words: "stop_trial t7" is "stop t7". */
function question(key) {
  const [verb, ...about] = key.split(" ");
  return [QUESTIONS[verb] ?? verb, ...about].join(" ");
}

export class ForecastCard {
  constructor(store) {
    this.store = store;
    this.big = h("p", { class: "big" });
    this.bounds = h("p", { class: "muted" });
    this.list = h("tbody");
    this.table = h("table", { class: "plain-table" }, h("caption", { class: "unseen" }, "What if"), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "If you"), h("th", { scope: "col", class: "number" }, "Done at"), h("th", { scope: "col", class: "number" }, "Change"))), this.list);
    this.made = h("p", { class: "muted small" });
    this.body = h("div", { class: "forecast" }, this.big, this.bounds, this.table, this.made);
    this.none = h("div");
    this.node = h("section", { class: "card", id: "part-forecast", tabindex: "-1", "aria-label": "Forecast" }, h("div", { class: "card-head" }, h("h2", {}, "Forecast")), h("div", { class: "card-body" }, this.body, this.none));
    this.ends = [store.on(["forecast", "run"], () => this.update())];
    this.update();
  }

  close() {
    this.ends.forEach((end) => end());
  }

  update() {
    const { forecast } = this.store;
    const nothing = this.whyNothing();
    this.body.hidden = Boolean(nothing);
    this.none.replaceChildren(...(nothing ? [emptyState(...nothing)] : []));
    if (nothing) return;
    const [when, bounds] = forecastWords(forecast);
    const left = forecast.done_at - Date.now() / 1000;
    setText(this.big, left > 0 ? `${when}, in ${duration(left)}` : when);
    setText(this.bounds, bounds);
    const answers = Object.entries(forecast.what_if ?? {}).filter(([, answer]) => answer?.done_at);
    this.table.hidden = !answers.length;
    reconcile(this.list, answers, ([key]) => key, ([key]) => this.rowOf(key));
    const how = forecast.exact ? "What the search will ask for is known." : "What the search will ask for depends on what trials report.";
    setText(this.made, `Made at ${clock(forecast.made_at, true)} from measured times of units. ${how}`);
  }

  /** Why there is nothing to show: a title and a sentence; null if there is something. */
  whyNothing() {
    const { forecast, over, summary } = this.store;
    if (over && !summary.finished && summary.state === "interrupted") return ["Nobody drives this run", "It is not over. Nothing is foreseen until a driver goes on with it."];
    if (over) return ["The run is over", "There is nothing left to foresee."];
    if (forecast?.done_at) return null;
    return ["No forecast yet", forecast?.reason ? `It is not known: ${forecast.reason}.` : "It is made by running the rest of this search in virtual time, as soon as a few units have been measured."];
  }

  rowOf(key) {
    const [when, change] = [h("td", { class: "number" }), h("td", { class: "number muted" })];
    const node = h("tr", {}, h("th", { scope: "row" }, question(key)), when, change);
    node.update = ([, answer]) => {
      const later = answer.done_at - this.store.forecast.done_at;
      setText(when, clock(answer.done_at));
      setText(change, Math.abs(later) < 1 ? "none" : `${later > 0 ? "+" : "−"}${duration(Math.abs(later))}`);
    };
    return node;
  }
}
