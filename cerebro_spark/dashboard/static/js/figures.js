// The figures at the top of a run: how far it is, what is best, when it will be done.

import { h, meter, setText } from "./dom.js";
import { clock, count, duration, metric as metricText, percent, plural } from "./format.js";
import { links } from "./router.js";

/** A figure: its name, its value, and a line below it. */
function figure(name, ...more) {
  const value = h("dd");
  const under = h("dd", { class: "under" });
  const node = h("div", {}, h("dt", {}, name), value, more, under);
  return { node, value, under };
}

/** The forecast in a few words: [when, in which bounds]. */
export function forecastWords(forecast) {
  if (!forecast?.done_at) return ["–", forecast?.reason || "no forecast yet"];
  const [done, low, high] = [forecast.done_at, forecast.low, forecast.high].map((time) => clock(time));
  return [done, low === high || !forecast.low ? "at the speed so far" : `between ${low} and ${high}`];
}

export class Figures {
  constructor(store) {
    this.store = store;
    this.bar = meter(0);
    this.progress = figure("Progress", this.bar);
    this.best = figure("Best");
    this.trials = figure("Trials");
    this.workers = figure("Workers");
    this.time = figure("Running for");
    this.done = figure("Done at");
    this.node = h("dl", { class: "card figures" }, [this.progress, this.best, this.trials, this.workers, this.time, this.done].map(({ node }) => node));
    this.live = h("p", { class: "unseen", role: "status" });
    this.ends = [store.on(["run", "forecast", "trials"], () => this.update())];
    this.said = { best: null, failed: 0 };
  }

  close() {
    this.ends.forEach((end) => end());
  }

  update() {
    const { summary } = this.store;
    if (!summary) return;
    this.showProgress(summary);
    this.showBest(summary);
    this.showTrials(summary);
    this.showTimes(summary);
    this.say(summary);
  }

  showProgress({ counts, state, finished }) {
    const share = counts.all_units ? counts.units / counts.all_units : 0;
    setText(this.progress.value, counts.all_units ? percent(share) : "–");
    setText(this.progress.under, `${count(counts.units)} of ${count(counts.all_units)} units`);
    this.bar.update(share, finished || state === "finished" ? "done" : "");
  }

  showBest({ best, objective }) {
    setText(this.best.value, metricText(best?.value));
    const link = this.bestLink ?? h("a");
    this.bestLink = link;
    if (!best) {
      setText(this.best.under, objective ? `${objective.metric}, no epoch yet` : "no metric is compared");
      return;
    }
    link.href = links.trial(this.store.run, best.trial);
    setText(link, best.trial);
    if (link.parentNode !== this.best.under) this.best.under.replaceChildren(document.createTextNode(""), link, document.createTextNode(""));
    setTextNode(this.best.under.firstChild, `${objective?.metric ?? ""} of `);
    setTextNode(this.best.under.lastChild, `, epoch ${best.epoch}`);
  }

  showTrials({ trials, counts }) {
    setText(this.trials.value, count(trials));
    const stopped = [...this.store.trials.values()].filter((trial) => trial.status === "stopped").length;
    const words = [[counts.running, "running"], [counts.done - stopped, "done"], [stopped, "stopped"], [counts.failed, "failed"]].filter(([n]) => n > 0).map(([n, word]) => `${count(n)} ${word}`);
    setText(this.trials.under, words.join(", ") || "none yet");
    setText(this.workers.value, count(counts.workers));
    setText(this.workers.under, typeof this.store.summary.utilisation === "number" ? `${percent(this.store.summary.utilisation)} busy` : "");
  }

  showTimes(summary) {
    setText(this.time.value, duration(summary.ended_at ?? summary.now));
    setText(this.time.under, summary.started_clock ? `since ${clock(summary.started_clock)}` : "");
    const { forecast } = this.store;
    setText(this.time.node.firstChild, this.store.over ? "Ran for" : "Running for");
    if (this.store.over) {
      setText(this.done.value, clock(summary.last_clock));
      setText(this.done.under, summary.state === "finished" ? "finished" : "not finished");
      return;
    }
    const [when, bounds] = forecastWords(forecast);
    setText(this.done.value, when);
    setText(this.done.under, bounds);
  }

  /** Tell a screen reader what is worth an interruption: a new best, and failures. */
  say({ best, counts, objective, state }) {
    const words = [];
    if (best && this.said.best !== null && best.trial + best.value !== this.said.best) words.push(`New best: ${best.trial} with ${objective?.metric} ${metricText(best.value)}.`);
    if (counts.failed > this.said.failed && this.said.best !== null) words.push(`${plural(counts.failed, "trial")} failed.`);
    if (this.said.state && this.said.state !== state) words.push(`The run is ${state} now.`);
    this.said = { best: best ? best.trial + best.value : "", failed: counts.failed, state };
    if (words.length) setText(this.live, words.join(" "));
  }
}

function setTextNode(node, text) {
  if (node.data !== text) node.data = text;
}
