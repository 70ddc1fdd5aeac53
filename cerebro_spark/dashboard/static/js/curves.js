// Learning curves: a line a trial. Those that stand out are coloured, all others are one pale line with gaps.

import { role } from "./colours.js";
import { choice, chooser, h } from "./dom.js";
import { count, duration, metric as metricText, plural, timeUnit } from "./format.js";
import { colourOf, legend, standingOut, tellTrial } from "./highlight.js";
import { axis, Chart, epochTicks, label, layout } from "./plot.js";

const MOST_COLOURED = 24;
const MOST_POINTS = 30_000;
const MOST_OF_A_LINE = 400;

/** Every n-th point and the last one: a line needs no more points than a screen has columns. */
export function thinned(length, most) {
  const step = Math.max(1, Math.ceil(length / most));
  const kept = [];
  for (let i = 0; i < length; i += step) kept.push(i);
  if (length && kept.at(-1) !== length - 1) kept.push(length - 1);
  return kept;
}

export class CurvesCard {
  constructor(store) {
    this.store = store;
    this.across = "epoch";
    this.scale = "linear";
    this.chart = new Chart({
      name: "Learning curves",
      draw: () => this.draw(),
      table: () => this.rows(),
      onHover: (point, event) => this.tell(point, event),
      onClick: (point) => point.data.owners && store.toggle(point.data.owners[point.pointNumber]),
    });
    this.metrics = chooser("Metric", [], null, (metric) => store.curves.use(metric));
    this.legend = legend(store);
    const tools = h(
      "div",
      { class: "card-tools" },
      this.metrics,
      choice("Across", [["epoch", "Epochs"], ["at", "Time"]], this.across, (value) => this.set("across", value)),
      choice("Scale", [["linear", "Linear"], ["log", "Log"]], this.scale, (value) => this.set("scale", value)),
    );
    const head = h("div", { class: "card-head" }, h("h2", {}, "Learning curves"), tools);
    this.node = h("section", { class: "card half", id: "part-curves", tabindex: "-1", "aria-label": "Learning curves" }, head, h("div", { class: "card-body" }, this.chart.node));
    this.chart.words.before(this.legend);
    this.ends = [store.on(["curves", "selection"], () => this.update()), store.on(["run", "trials"], () => this.name())];
  }

  set(name, value) {
    this[name] = value;
    this.chart.update();
  }

  update() {
    this.name();
    this.chart.update();
  }

  /** Show which metrics there are, and who stands out. */
  name() {
    const { curves, summary } = this.store;
    this.metrics.update(summary?.metrics ?? [], curves.metric);
    this.legend.update();
    // Who is best may come after the curves did.
    const best = standingOut(this.store).trials[0]?.id;
    if (best !== this.best) this.chart.update();
    this.best = best;
  }

  close() {
    this.chart.close();
    this.ends.forEach((end) => end());
  }

  draw() {
    const { curves } = this.store;
    const { shown } = curves;
    if (shown.problem) return { empty: ["The curves cannot be loaded", shown.problem.message] };
    if (!shown.loaded) return { empty: ["Loading the curves", ""] };
    if (!shown.trials.size) return { empty: ["No epoch has ended yet", "Curves begin when the first trial has been through all partitions once."] };
    const { trials, chosen } = standingOut(this.store);
    this.unit = this.across === "at" ? timeUnit(this.store.summary?.now ?? 0) : { seconds: 1, suffix: "" };
    const coloured = new Set(trials.slice(0, MOST_COLOURED).map((trial) => trial.id));
    const others = [...shown.trials.keys()].filter((id) => !coloured.has(id));
    const traces = [this.paleTrace(others), ...[...coloured].filter((id) => shown.trials.has(id)).reverse().map((id) => this.lineOf(id, chosen))];
    return { traces, layout: this.form(), words: this.words() };
  }

  form() {
    const across = { text: this.across === "epoch" ? "epoch" : "time since the start", standoff: 8, font: { size: 12, color: role("muted") } };
    const ticks = this.across === "epoch" ? epochTicks(this.mostEpochs()) : { ticksuffix: this.unit.suffix };
    return layout({
      xaxis: axis({ title: across, showgrid: false, ...ticks }),
      yaxis: axis({ type: this.scale, title: { text: label(this.store.curves.metric ?? "", 40), standoff: 8, font: { size: 12, color: role("muted") } } }),
      uirevision: `${this.store.curves.metric} ${this.across} ${this.scale}`,
    });
  }

  mostEpochs() {
    return [...this.store.curves.shown.trials.values()].reduce((most, curve) => Math.max(most, curve.epoch.at(-1) ?? 0), 0);
  }

  lineOf(id, chosen) {
    const curve = this.store.curves.shown.trials.get(id);
    const kept = thinned(curve.epoch.length, MOST_OF_A_LINE);
    const few = kept.length < 30;
    return {
      type: "scatter",
      mode: few ? "lines+markers" : "lines",
      x: kept.map((i) => curve[this.across][i] / this.unit.seconds),
      y: kept.map((i) => curve.value[i]),
      owners: kept.map(() => id),
      places: kept,
      line: { color: colourOf(this.store, id), width: chosen ? 2.4 : 1.8 },
      marker: { size: 5 },
      hoverinfo: "none",
      // An epoch without a number is a gap: a line across it would say that there was one.
      connectgaps: false,
    };
  }

  paleTrace(ids) {
    const { shown } = this.store.curves;
    const most = Math.max(8, Math.floor(MOST_POINTS / Math.max(1, ids.length)));
    const [x, y, owners, places] = [[], [], [], []];
    for (const id of ids) {
      const curve = shown.trials.get(id);
      for (const i of thinned(curve.epoch.length, Math.min(most, MOST_OF_A_LINE))) {
        x.push(curve[this.across][i] / this.unit.seconds);
        y.push(curve.value[i]);
        owners.push(id);
        places.push(i);
      }
      x.push(null);
      y.push(null);
      owners.push(id);
      places.push(null);
    }
    const crowd = ids.length > 200 ? 0.35 : ids.length > 40 ? 0.55 : 0.9;
    return { type: "scatter", mode: ids.length < 100 ? "lines+markers" : "lines", x, y, owners, places, opacity: crowd, line: { color: role("faint"), width: 1 }, marker: { size: 3 }, hoverinfo: "none", connectgaps: false };
  }

  tell(point, event) {
    const { curves } = this.store;
    const id = point.data.owners[point.pointNumber];
    const curve = curves.shown.trials.get(id);
    const i = point.data.places[point.pointNumber];
    if (!curve || i === null) return;
    tellTrial(this.store, id, event, [[curves.metric, metricText(curve.value[i])], ["epoch", count(curve.epoch[i])], ["after", duration(curve.at[i])]]);
  }

  words() {
    const { curves, objective } = this.store;
    const best = this.store.ranked().find((trial) => typeof trial.best_value === "number");
    const most = this.mostEpochs();
    const lead = best && objective ? ` Best: ${best.id} with ${objective.metric} ${metricText(best.best_value)} in epoch ${best.best_epoch}.` : "";
    return `${curves.metric} of ${plural(curves.shown.trials.size, "trial")}, up to epoch ${most}.${lead}`;
  }

  rows() {
    const { curves } = this.store;
    const ids = standingOut(this.store, 20).trials.map((trial) => trial.id).filter((id) => curves.shown.trials.has(id)).slice(0, 50);
    const epochs = [...new Set(ids.flatMap((id) => curves.shown.trials.get(id).epoch))].sort((a, b) => a - b);
    const rows = ids.map((id) => {
      const curve = curves.shown.trials.get(id);
      return [id, ...epochs.map((epoch) => metricText(curve.value[curve.epoch.indexOf(epoch)]))];
    });
    return { head: ["Trial", ...epochs.map((epoch) => `Epoch ${epoch}`)], rows };
  }
}
