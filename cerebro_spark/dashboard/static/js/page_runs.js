// The page of all runs in the store.

import { get, listen, server } from "./api.js";
import { emptyState, h, meter, pill, reconcile, setText } from "./dom.js";
import { clock, count, duration, metric as metricText, percent, plural } from "./format.js";
import { links } from "./router.js";
import { compareValues, sortHeader } from "./sorting.js";

const COLUMNS = [
  { key: "run", text: "Run", down: true },
  { key: "state", text: "State" },
  { key: "started", text: "Started", down: true },
  { key: "time", text: "Time", number: true, down: true },
  { key: "progress", text: "Progress", down: true },
  { key: "trials", text: "Trials", number: true, down: true },
  { key: "metric", text: "Metric" },
  { key: "best", text: "Best", number: true, down: true },
  { key: "workers", text: "Workers", number: true, down: true },
];

export class RunsPage {
  constructor(_, shell) {
    this.shell = shell;
    this.title = "Runs";
    this.crumbs = [["Runs", null]];
    this.order = { key: "started", down: true };
    this.chosen = new Set();
    this.rows = null;
    this.text = "";
    this.line = h("p", { class: "head-line" });
    this.compare = h("a", { class: "button", href: "#/", "aria-disabled": "true" }, "Compare");
    this.search = h("input", { type: "search", placeholder: "Filter by name or state", "aria-label": "Filter runs", oninput: () => this.filter() });
    this.body = h("tbody");
    this.heads = COLUMNS.map((column) => sortHeader(column, this.order, () => this.update()));
    const table = h("table", {}, h("caption", { class: "unseen" }, "Runs in this store"), h("thead", {}, h("tr", {}, h("th", { class: "pick", scope: "col" }, h("span", { class: "unseen" }, "Choose for comparison")), this.heads)), this.body);
    this.frame = h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Runs, a table" }, table);
    this.none = h("div", {}, h("div", { class: "skeleton tall" }));
    this.card = h("section", { class: "card trials runs", "aria-label": "Runs" }, this.frame, this.none);
    this.node = h("div", {}, h("div", { class: "head" }, h("div", {}, h("h1", {}, "Runs"), this.line), h("div", { class: "actions" }, this.search, this.compare)), this.card);
    this.frame.hidden = true;
    this.load();
    this.end = listen("api/stream", { runs: (answer) => this.take(answer) }, (state) => this.shell.link(state));
  }

  close() {
    this.end();
  }

  async load() {
    try {
      const [facts, answer] = await Promise.all([server(), get("api/runs")]);
      this.store = facts.store;
      this.take(answer);
    } catch (error) {
      const again = h("button", { type: "button", class: "button", onclick: () => this.load() }, "Try again");
      this.none.replaceChildren(emptyState("The runs cannot be listed", error.message, again, false));
    }
  }

  take({ runs, reading }) {
    this.rows = runs;
    this.reading = reading;
    this.update();
  }

  filter() {
    this.text = this.search.value.trim().toLowerCase();
    this.update();
  }

  sortValue(run, key) {
    const { counts } = run;
    const values = { run: run.run, state: run.state, started: run.started_clock, time: run.ended_at ?? run.now, progress: counts?.all_units ? counts.units / counts.all_units : 0, trials: run.trials, metric: run.objective?.metric, best: run.best?.value, workers: counts?.workers };
    return values[key];
  }

  update() {
    if (!this.rows) return;
    const { key, down } = this.order;
    const kept = this.rows.filter((run) => `${run.run} ${run.state} ${run.objective?.metric ?? ""}`.toLowerCase().includes(this.text));
    kept.sort((one, other) => compareValues(this.sortValue(one, key), this.sortValue(other, key), down));
    reconcile(this.body, kept, (run) => run.run, (run) => this.rowOf(run.run));
    this.heads.forEach((head) => head.update());
    this.frame.hidden = !kept.length;
    this.none.replaceChildren(...(kept.length ? [] : [this.nothing()]));
    const reading = this.reading ? `; ${plural(this.reading, "log")} still being read` : "";
    setText(this.line, `${plural(this.rows.length, "run")}${this.store ? ` in ${this.store}` : ""}${reading}`);
    this.search.hidden = this.rows.length < 6;
    this.showCompare();
  }

  nothing() {
    if (this.rows.length) return emptyState("No run matches", "Clear the filter to see all runs.", null, false);
    const code = h("code", {}, "search.fit(df)");
    const node = emptyState("No runs in this store yet", null, null, false);
    node.append(h("p", {}, "A run appears here as soon as ", code, ` begins with store="${this.store ?? ""}". This page needs no reload.`));
    return node;
  }

  showCompare() {
    const ids = [...this.chosen].filter((id) => this.rows.some((run) => run.run === id));
    const enough = ids.length > 1;
    this.compare.href = enough ? links.compare(ids) : "#/";
    this.compare.setAttribute("aria-disabled", String(!enough));
    this.compare.hidden = this.rows.length < 2;
    setText(this.compare, enough ? `Compare ${plural(ids.length, "run")}` : "Choose runs to compare");
  }

  choose(id, on) {
    if (on) this.chosen.add(id);
    else this.chosen.delete(id);
    this.update();
  }

  rowOf(id) {
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${id}`, onchange: () => this.choose(id, box.checked) });
    const state = pill("reading");
    const [started, time, trials, best, workers] = [null, "number", "number", "number", "number"].map((kind) => h("td", { class: kind ? "number nowrap" : "nowrap" }));
    const goal = h("td", { class: "muted nowrap" });
    const bar = meter(0);
    const share = h("span");
    const problem = h("p", { class: "hint wrong" });
    // On a phone this line stands for the columns that have no room there.
    const line = h("p", { class: "phone-line muted small" });
    const node = h("tr", {}, h("td", { class: "pick" }, box), h("th", { scope: "row" }, h("a", { href: links.run(id), class: "nowrap" }, id), line, problem), h("td", {}, state), started, time, h("td", {}, h("div", { class: "epochs" }, bar, share)), trials, goal, best, workers);
    node.update = (run) => {
      const { counts } = run;
      const done = counts?.all_units ? counts.units / counts.all_units : 0;
      state.update(run.state === "silent" ? "unknown" : run.state === "interrupted" ? "paused" : run.state === "unreadable" ? "failed" : run.state, run.state);
      setText(problem, run.problem ?? "");
      problem.hidden = !run.problem;
      setText(started, clock(run.started_clock));
      setText(time, duration(run.ended_at ?? run.now));
      bar.update(done, run.state === "finished" ? "done" : "");
      setText(share, percent(done));
      setText(trials, count(run.trials));
      setText(best, run.best ? metricText(run.best.value) : "–");
      setText(goal, run.objective ? `${run.objective.metric}, ${run.objective.mode}` : "–");
      setText(workers, count(counts?.workers));
      const found = run.best ? `, best ${metricText(run.best.value)}` : "";
      setText(line, `${percent(done)} of ${plural(run.trials, "trial")}${found}, ${duration(run.ended_at ?? run.now)}`);
      node.classList.toggle("chosen", box.checked);
    };
    return node;
  }
}
