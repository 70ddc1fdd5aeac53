// The units of one trial: where each ran, when, how long, and with which loss. Sorted, a page at a time.

import { emptyState, h, reconcile, setText } from "./dom.js";
import { count, duration, metric as metricText, plural, stopwatch } from "./format.js";
import { withEarlier } from "./gantt_data.js";
import { compareValues, sortHeader } from "./sorting.js";

const PAGE = 25;
const COLUMNS = [
  { key: "start", text: "Began", number: true, show: (unit) => stopwatch(unit.start) },
  { key: "epoch", text: "Epoch", number: true, show: (unit) => count(unit.epoch) },
  { key: "kind", text: "Does", show: (unit) => (unit.kind === "train" ? "trains" : "evaluates") },
  { key: "partition", text: "Partition", show: (unit) => unit.partition },
  { key: "worker", text: "Worker", show: (unit) => unit.worker },
  { key: "host", text: "Host", show: (unit) => unit.host || "–" },
  { key: "hop", text: "Hop", show: (unit) => (unit.hop ? `from ${unit.hop}` : "–") },
  { key: "seconds", text: "Took", number: true, down: true, show: (unit) => duration(unit.seconds) },
  { key: "loss", text: "Loss", number: true, show: (unit) => metricText(unit.loss) },
  { key: "width", text: "Together", number: true, down: true, show: (unit) => (unit.width > 1 ? `${unit.width} trials` : "–") },
  { key: "group", text: "Group", number: true, down: true, show: (unit) => (unit.group > 1 ? `${unit.group} workers` : "–") },
];

export class TrialUnits {
  constructor() {
    Object.assign(this, { rows: [], page: 0, order: { key: "start", down: true } });
    this.heads = COLUMNS.map((column) => sortHeader(column, this.order, () => this.show()));
    this.body = h("tbody");
    const table = h("table", {}, h("caption", { class: "unseen" }, "Units of this trial"), h("thead", {}, h("tr", {}, this.heads)), this.body);
    this.frame = h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Units, a table" }, table);
    this.none = h("div");
    this.said = h("span");
    this.place = h("span");
    this.back = h("button", { type: "button", class: "button small", onclick: () => this.turn(-1) }, "Previous");
    this.next = h("button", { type: "button", class: "button small", onclick: () => this.turn(1) }, "Next");
    this.pager = h("div", { class: "pager" }, this.back, this.place, this.next);
    this.node = h("section", { class: "card wide trials", "aria-label": "Units" }, h("div", { class: "card-head" }, h("h2", {}, "Units")), this.frame, this.none, h("div", { class: "card-foot" }, this.said, this.pager));
  }

  turn(step) {
    this.page += step;
    this.show();
  }

  update(units) {
    this.rows = units.attempt.map((attempt, i) => Object.fromEntries([["attempt", attempt], ...Object.keys(units).map((name) => [name, units[name][i]])]));
    const pairs = withEarlier(this.rows.filter((unit) => unit.kind === "train"));
    for (const [before, unit] of pairs) unit.hop = before.worker !== unit.worker ? before.worker : "";
    this.hops = pairs.filter(([, unit]) => unit.hop).length;
    this.show();
  }

  show() {
    const { key, down } = this.order;
    const rows = this.rows.toSorted((one, other) => compareValues(one[key], other[key], down));
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    this.heads.forEach((head) => head.update());
    reconcile(this.body, rows.slice(this.page * PAGE, (this.page + 1) * PAGE), (unit) => `${unit.attempt} ${unit.rank}`, rowOf);
    this.frame.hidden = !rows.length;
    this.none.replaceChildren(...(rows.length ? [] : [emptyState("No unit has ended yet", "")]));
    const seconds = rows.reduce((sum, unit) => sum + (unit.seconds ?? 0), 0);
    setText(this.said, rows.length ? `${plural(rows.length, "unit")}, ${plural(this.hops, "hop")}, ${duration(seconds)} of computing` : "");
    setText(this.place, `Page ${this.page + 1} of ${pages}`);
    this.pager.hidden = pages < 2;
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page === pages - 1;
  }
}

function rowOf(unit) {
  const cells = COLUMNS.map((column) => h("td", { class: column.number ? "number" : "nowrap" }));
  const node = h("tr", {}, cells);
  node.update = (now) => COLUMNS.forEach((column, i) => setText(cells[i], column.show(now)));
  node.update(unit);
  return node;
}
