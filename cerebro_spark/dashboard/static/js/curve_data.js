// The learning curves of a run: for each metric that was asked for, the points of every trial, in order of epochs.

import { get, runPath } from "./api.js";
import { fetchMissing } from "./fetch_missing.js";

/** The points of one trial. Points that come again replace. */
class Curve {
  constructor() {
    this.epoch = [];
    this.at = [];
    this.value = [];
  }

  put(epoch, at, value) {
    let place = this.epoch.length;
    while (place > 0 && this.epoch[place - 1] >= epoch) place -= 1;
    const again = this.epoch[place] === epoch ? 1 : 0;
    this.epoch.splice(place, again, epoch);
    this.at.splice(place, again, at);
    this.value.splice(place, again, value);
  }
}

/** All points of one metric. */
class MetricCurves {
  constructor(metric) {
    Object.assign(this, { metric, version: 0, loaded: false, problem: null, asking: null, trials: new Map() });
  }

  put(trial, epoch, at, value) {
    let curve = this.trials.get(trial);
    if (!curve) this.trials.set(trial, (curve = new Curve()));
    curve.put(epoch, at, value);
  }

  take(answer) {
    if (answer.from === 0) this.trials.clear();
    answer.index.forEach((which, i) => this.put(answer.trial[which], answer.epoch[i], answer.at[i], answer.value[i]));
  }
}

export class Curves {
  constructor(store) {
    this.store = store;
    this.metric = null;
    this.known = new Map();
  }

  /** The curves of the metric that is shown. */
  get shown() {
    return this.known.get(this.metric) ?? new MetricCurves(this.metric);
  }

  /** Show another metric; null for the one that the search looks at. */
  async use(metric) {
    this.metric = metric ?? this.store.objective?.metric ?? this.store.summary?.metrics?.[0] ?? null;
    if (!this.known.has(this.metric)) this.known.set(this.metric, new MetricCurves(this.metric));
    this.store.touch("curves");
    await this.sync();
  }

  sync() {
    return this.syncOne(this.shown);
  }

  syncOne(curves) {
    curves.asking ??= fetchMissing(this.store, curves, "curves", (query) => this.ask(curves, query)).finally(() => {
      curves.asking = null;
    });
    return curves.asking;
  }

  async ask(curves, query) {
    const answer = await get(runPath(this.store.run, "/curves", { metric: curves.metric, ...query }));
    // A run that has reported nothing yet has no metric to name; its first answer names one.
    if (curves.metric === null && answer.metric) this.rename(curves, answer.metric);
    return answer;
  }

  rename(curves, metric) {
    this.known.delete(curves.metric);
    curves.metric = metric;
    this.known.set(metric, curves);
    this.metric = metric;
  }

  /** Take the points that the stream brought into every metric that was loaded. */
  follow(update) {
    for (const curves of this.known.values()) {
      if (!curves.loaded || curves.asking || update.from > curves.version || update.points === null) this.syncShown(curves);
      else this.takePoints(curves, update);
    }
    if (update.points?.trial.length) this.store.touch("curves");
  }

  syncShown(curves) {
    // What is not shown is loaded again when it is: it stays behind until then.
    if (curves === this.shown) this.syncOne(curves);
  }

  takePoints(curves, { points, version }) {
    const values = points.metrics[curves.metric];
    if (values) points.trial.forEach((trial, i) => values[i] !== undefined && curves.put(trial, points.epoch[i], points.at[i], values[i]));
    curves.version = Math.max(curves.version, version);
  }
}
