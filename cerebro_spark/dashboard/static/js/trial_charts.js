// The curves of one trial: a small chart for each metric, training and validation in one.

import { role, trialColour } from "./colours.js";
import { emptyState, h, reconcile } from "./dom.js";
import { metric as metricText } from "./format.js";
import { axis, Chart, epochTicks, label, layout } from "./plot.js";

/** "val_loss" and "loss" belong together. */
function baseName(name) {
  return name.replace(/^val_/, "");
}

export class TrialCharts {
  constructor() {
    this.grid = h("div", { class: "charts-grid" });
    this.none = h("div");
    this.node = h("section", { class: "card two-thirds", "aria-label": "Learning curves" }, h("div", { class: "card-head" }, h("h2", {}, "Learning curves")), h("div", { class: "card-body" }, this.grid, this.none));
    this.charts = new Map();
  }

  close() {
    for (const chart of this.charts.values()) chart.close();
  }

  update(curves, objective) {
    this.curves = curves;
    const names = [...new Set(Object.keys(curves.metrics).map(baseName))];
    const first = objective ? baseName(objective.metric) : null;
    names.sort((one, other) => (other === first) - (one === first) || one.localeCompare(other));
    const any = curves.epoch.length > 0;
    this.none.replaceChildren(...(any ? [] : [emptyState("No epoch has ended yet", "Curves begin when it has been through all partitions once.")]));
    reconcile(this.grid, any ? names : [], (name) => name, (name) => this.chartOf(name));
    for (const chart of this.charts.values()) chart.update();
  }

  chartOf(name) {
    const chart = new Chart({ name, size: "low", draw: () => this.draw(name), table: () => this.rows(name) });
    this.charts.set(name, chart);
    return h("div", {}, h("h3", {}, name), chart.node);
  }

  series(name) {
    const { metrics } = this.curves;
    return [[name, "training", "dot", 1], [`val_${name}`, "validation", "solid", 0]].filter(([key]) => metrics[key]).map(([key, word, dash, colour]) => ({ key, word, dash, colour, values: metrics[key] }));
  }

  draw(name) {
    const series = this.series(name);
    const traces = series.map(({ values, dash, colour, word }) => ({
      type: "scatter",
      mode: values.length < 40 ? "lines+markers" : "lines",
      x: this.curves.epoch,
      y: values,
      line: { color: trialColour(colour), width: 2, dash },
      marker: { size: 5 },
      hovertemplate: `epoch %{x}, ${word} %{y:.5g}<extra></extra>`,
    }));
    const words = series.map(({ word, values, dash }) => `${word} (${dash === "dot" ? "dotted" : "solid"}): ${metricText(values.at(-1))} after epoch ${this.curves.epoch.at(-1)}`).join("; ");
    const title = { text: "epoch", standoff: 6, font: { size: 11, color: role("muted") } };
    return {
      traces,
      words,
      layout: layout({ xaxis: axis({ title, ...epochTicks(this.curves.epoch.at(-1)), showgrid: false }), yaxis: axis(), uirevision: label(name), hoverlabel: { bgcolor: role("raised"), bordercolor: role("line"), font: { color: role("text") } } }),
    };
  }

  rows(name) {
    const series = this.series(name);
    return { head: ["Epoch", ...series.map(({ word }) => word)], rows: this.curves.epoch.map((epoch, i) => [epoch, ...series.map(({ values }) => metricText(values[i]))]) };
  }
}
