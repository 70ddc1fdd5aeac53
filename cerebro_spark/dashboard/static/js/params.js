// Params against metrics: parallel coordinates, or one param against one metric.

import { role } from "./colours.js";
import { choice, chooser, h, reconcile, setAttr } from "./dom.js";
import { metric as metricText, param, plural } from "./format.js";
import { colourOf, tellTrial } from "./highlight.js";
import { drawParallel, tellParallel } from "./parallel.js";
import { axis, Chart, label, layout } from "./plot.js";
import { Space, varying } from "./spaces.js";

const MOST_ROWS = 200;

export class ParamsCard {
  constructor(store) {
    this.store = store;
    this.kind = "parallel";
    this.hidden = new Set();
    this.across = null;
    this.up = null;
    this.chart = new Chart({
      name: "Params against metrics",
      draw: () => (this.kind === "parallel" ? drawParallel(store, this.hidden) : this.drawScatter()),
      table: () => this.rows(),
      every: 1500,
      size: "tall",
      onHover: (point, event) => this.tell(point, event),
      onClick: (point) => store.toggle(point.data.owners[point.pointNumber]),
    });
    const kinds = [["parallel", "Parallel"], ["scatter", "Scatter"]];
    this.x = chooser("Param", [], null, (name) => this.set("across", name));
    this.y = chooser("Metric", [], null, (name) => this.set("up", name));
    this.list = h("div", { class: "menu-list", hidden: true });
    this.opener = h("button", { type: "button", class: "button small", "aria-expanded": "false", onclick: () => this.openList() }, "Params");
    this.axes = h("div", { class: "menu", onkeydown: (event) => event.key === "Escape" && this.closeList() }, this.opener, this.list);
    const tools = h("div", { class: "card-tools" }, this.axes, this.x, this.y, choice("Picture", kinds, this.kind, (kind) => this.set("kind", kind)));
    const head = h("div", { class: "card-head" }, h("h2", {}, "Params"), tools);
    this.node = h("section", { class: "card half", id: "part-params", tabindex: "-1", "aria-label": "Params against metrics" }, head, h("div", { class: "card-body" }, this.chart.node));
    this.ends = [store.on(["trials", "selection"], () => this.update())];
    this.update();
  }

  set(name, value) {
    this[name] = value;
    this.update();
  }

  openList() {
    const open = this.list.hidden;
    this.list.hidden = !open;
    setAttr(this.opener, "aria-expanded", open);
  }

  closeList() {
    if (this.list.hidden) return;
    this.openList();
    this.opener.focus();
  }

  update() {
    const names = this.varyingNames();
    const metrics = this.store.summary?.metrics ?? [];
    this.across ??= names[0] ?? null;
    this.up ??= this.store.objective?.metric ?? metrics[0] ?? null;
    this.x.update(names, this.across);
    this.y.update(metrics, this.up);
    const parallel = this.kind === "parallel";
    this.x.hidden = this.y.hidden = parallel;
    this.axes.hidden = !parallel || names.length < 2;
    reconcile(this.list, names, (name) => name, (name) => this.switchOf(name));
    this.chart.update();
  }

  varyingNames() {
    // Asked after every update: with a thousand trials that is worth remembering.
    const { trials, summary, paramChanges } = this.store;
    const key = `${paramChanges} ${summary?.params?.length}`;
    if (this.namesKey !== key) {
      this.namesKey = key;
      this.names = varying([...trials.values()], summary?.params ?? []).map((space) => space.name);
    }
    return this.names;
  }

  switchOf(name) {
    const box = h("input", { type: "checkbox", onchange: () => this.show(name, box.checked) });
    box.checked = !this.hidden.has(name);
    return h("label", { class: "inline-field" }, box, name);
  }

  show(name, on) {
    if (on) this.hidden.delete(name);
    else this.hidden.add(name);
    this.chart.update();
  }

  close() {
    this.chart.close();
    this.ends.forEach((end) => end());
  }

  valueOf(trial) {
    return this.up === this.store.objective?.metric ? trial.best_value : (trial.best_metrics ?? trial.metrics)?.[this.up];
  }

  drawScatter() {
    const trials = [...this.store.trials.values()].filter((trial) => typeof this.valueOf(trial) === "number" && trial.params[this.across] !== undefined);
    if (!this.across) return { empty: ["Nothing to compare yet", "A param can be chosen as soon as trials differ in one."] };
    if (!trials.length) return { empty: ["No trial has this metric yet", "Dots appear when epochs end."] };
    const space = new Space(this.across, trials.map((trial) => trial.params[this.across]));
    const chosen = this.store.selection.size > 0;
    const front = trials.filter((trial) => this.store.selection.has(trial.id));
    const back = trials.filter((trial) => !this.store.selection.has(trial.id));
    const traces = [this.dots(back, space, chosen ? role("faint") : null, 7), this.dots(front, space, null, 11)];
    return { traces, layout: this.form(space), words: `${this.up} of ${plural(trials.length, "trial")} against ${this.across}.` };
  }

  dots(trials, space, colour, size) {
    const color = colour ?? trials.map((trial) => colourOf(this.store, trial.id));
    return {
      type: "scatter",
      mode: "markers",
      x: trials.map((trial) => (space.numeric ? trial.params[this.across] : space.names.indexOf(param(trial.params[this.across])))),
      y: trials.map((trial) => this.valueOf(trial)),
      owners: trials.map((trial) => trial.id),
      marker: { size, color, opacity: 0.85, line: { color: role("surface"), width: 1 } },
      hoverinfo: "none",
    };
  }

  form(space) {
    const title = (text) => ({ text: label(text, 40), standoff: 8, font: { size: 12, color: role("muted") } });
    const names = space.numeric ? { type: space.log ? "log" : "linear" } : { tickvals: space.names.map((_, i) => i), ticktext: space.names.map((name) => label(name, 14)) };
    return layout({
      xaxis: axis({ ...names, title: title(this.across), ...(space.log ? { dtick: 1, exponentformat: "power" } : {}) }),
      yaxis: axis({ title: title(this.up) }),
      uirevision: `${this.across} ${this.up}`,
    });
  }

  tell(point, event) {
    if (this.kind === "parallel") tellParallel(this.store, point, event);
    else tellTrial(this.store, point.data.owners[point.pointNumber], event, [[this.up, metricText(point.y)]]);
  }

  rows() {
    const names = this.varyingNames();
    const trials = this.store.ranked().slice(0, MOST_ROWS);
    const head = ["Trial", ...names, this.store.objective?.metric ?? "Best"];
    return { head, rows: trials.map((trial) => [trial.id, ...names.map((name) => param(trial.params[name])), metricText(trial.best_value)]) };
  }
}
