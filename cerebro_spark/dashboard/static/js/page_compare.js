// Several runs side by side: how fast each became how good, and how they differ.

import { get, listen } from "./api.js";
import { role, trialColour, trialStyle } from "./colours.js";
import { choice, emptyState, h, pill, setText } from "./dom.js";
import { count, duration, listed, metric as metricText, param, percent, plural, stopwatch, timeUnit } from "./format.js";
import { axis, Chart, label, layout } from "./plot.js";
import { links } from "./router.js";
import { showTip } from "./tip.js";

const REFRESH = 5000;
// As many as the server compares at once, and as there are colours.
const MOST = 20;

export class ComparePage {
  constructor({ runs }, shell) {
    const ids = [...new Set(runs)];
    Object.assign(this, { ids: ids.slice(0, MOST), asked: ids.length, deleted: [], seen: new Set(), runs: null, across: "at" });
    this.line = h("p", { class: "head-line" });
    this.notices = h("div", { class: "stack", role: "status" });
    this.showNames();
    this.title = "Compare runs";
    this.crumbs = [["Runs", links.runs()], ["Compare", null]];
    this.node = h("div", {}, this.head(), h("div", { class: "skeleton tall" }));
    this.charts = [];
    this.load();
    // The stream of runs says when one of them has moved on; their curves come with the route.
    this.end = listen("api/stream", { runs: (answer) => this.hear(answer) }, (state) => shell.link(state));
  }

  head() {
    return h("div", { class: "head" }, h("div", {}, h("h1", {}, "Compare runs"), this.line, this.notices), h("div", { class: "actions" }, h("a", { class: "button", href: links.runs() }, "Choose other runs")));
  }

  /** Name the runs, and say what is not as it was asked for. */
  showNames(problem = null) {
    setText(this.line, listed(this.ids));
    const texts = [
      this.asked > MOST && `These are the first ${MOST} of ${plural(this.asked, "run")}: more cannot be compared at once.`,
      this.deleted.length && `${listed(this.deleted)} ${this.deleted.length === 1 ? "was" : "were"} deleted, and left out.`,
      problem && `What is shown may be old: ${problem.message}`,
    ];
    this.notices.replaceChildren(...texts.filter(Boolean).map((text) => h("p", { class: "answer", data: { state: "waiting" } }, text)));
  }

  close() {
    this.closed = true;
    clearTimeout(this.soon);
    this.end();
    this.charts.forEach((chart) => chart.close());
  }

  /** Take the list of all runs: those that were in it and no longer are were deleted. The newest may not be in it yet. */
  hear({ runs }) {
    const names = new Set(runs.map(({ run }) => run));
    const deleted = this.ids.filter((id) => this.seen.has(id) && !names.has(id));
    names.forEach((name) => this.seen.add(name));
    if (!deleted.length) return this.loadSoon();
    this.deleted.push(...deleted);
    this.ids = this.ids.filter((id) => names.has(id) || !this.seen.has(id));
    return this.load();
  }

  loadSoon() {
    const running = this.runs?.some((run) => ["running", "paused", "reading"].includes(run.state));
    if (this.soon || !running) return;
    this.soon = setTimeout(() => {
      this.soon = null;
      this.load();
    }, REFRESH);
  }

  async load() {
    const { ids } = this;
    if (ids.length < 2) {
      this.showNames();
      this.node.replaceChildren(this.head(), h("div", { class: "card" }, emptyState("Choose at least two runs", "Tick them in the list of runs, then press Compare.", h("a", { class: "button", href: links.runs() }, "All runs"), false)));
      return;
    }
    try {
      const { runs } = await get(`api/compare?${new URLSearchParams(ids.map((id) => ["run", id]))}`);
      if (this.closed || ids !== this.ids) return;
      this.runs = runs;
      this.showNames();
      if (!this.built) this.build();
      this.update();
    } catch (error) {
      if (this.closed || ids !== this.ids) return;
      if (this.built) {
        this.showNames(error);
        return;
      }
      const again = h("button", { type: "button", class: "button", onclick: () => this.load() }, "Try again");
      this.node.replaceChildren(this.head(), h("div", { class: "card" }, emptyState("The runs cannot be compared", error.message, again, false)));
    }
  }

  build() {
    this.built = true;
    const tell = (point, event) => this.tell(point, event);
    this.progress = new Chart({ name: "Best so far", draw: () => this.drawProgress(), table: () => this.progressRows(), onHover: tell });
    this.curves = new Chart({ name: "Curve of the best trial", draw: () => this.drawCurves(), onHover: tell });
    this.charts = [this.progress, this.curves];
    const tools = choice("Across", [["at", "Time"], ["epochs", "Epochs trained"]], this.across, (value) => {
      this.across = value;
      this.progress.update();
    });
    this.warning = h("p", { class: "answer", data: { state: "waiting" }, hidden: true });
    this.body = h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Figures of the runs, a table" });
    this.key = h("ul", { class: "legend-list", "aria-label": "Colours of the runs" });
    const card = (title, width, body, more = null) => h("section", { class: `card ${width}`, "aria-label": title }, h("div", { class: "card-head" }, h("h2", {}, title), more), body);
    this.node.replaceChildren(
      this.head(),
      h("div", { class: "stack compare-key" }, this.warning, this.key),
      h("div", { class: "grid" }, card("Best so far", "half", h("div", { class: "card-body" }, this.progress.node), tools), card("Curve of the best trial", "half", h("div", { class: "card-body" }, this.curves.node)), card("Figures", "wide", this.body)),
    );
  }

  update() {
    const goals = new Set(this.runs.map(({ objective }) => (objective ? `${objective.mode} ${objective.metric}` : "none")));
    this.warning.hidden = goals.size < 2;
    this.warning.textContent = `These runs look at different metrics (${listed([...goals])}): their values cannot be compared.`;
    this.key.replaceChildren(...this.runs.map((run, i) => h("li", {}, h("a", { class: "chip", href: links.run(run.run) }, h("span", { class: "swatch", vars: { "--swatch": trialStyle(i) } }), run.run))));
    this.charts.forEach((chart) => chart.update());
    const focused = this.body.contains(document.activeElement);
    if (!focused) this.body.replaceChildren(this.table());
  }

  traces(pick, step) {
    return this.runs.map((run, i) => {
      const { x, y } = pick(run);
      return { type: "scatter", mode: x.length < 60 ? "lines+markers" : "lines", x, y, owner: run.run, line: { color: trialColour(i), width: 2, shape: step ? "hv" : "linear" }, marker: { size: 5 }, hoverinfo: "none" };
    });
  }

  /** The unit of the axis of time; of epochs, none. */
  get unit() {
    if (this.across !== "at") return { seconds: 1, suffix: "" };
    return timeUnit(this.runs.reduce((most, run) => Math.max(most, run.now ?? 0), 0));
  }

  form(across, suffix) {
    const title = (text) => ({ text: label(text, 40), standoff: 8, font: { size: 12, color: role("muted") } });
    const metric = this.runs.find((run) => run.objective)?.objective.metric ?? "";
    return layout({ xaxis: axis({ title: title(across), showgrid: false, ticksuffix: suffix }), yaxis: axis({ title: title(metric) }), uirevision: across });
  }

  drawProgress() {
    if (!this.runs.some((run) => run.progress?.at.length)) return { empty: ["No epoch has ended yet", "Lines begin with the first report of a run."] };
    const traces = this.traces(({ progress }) => ({ x: progress[this.across].map((value) => value / this.unit.seconds), y: progress.best }), true);
    const best = this.runs.filter((run) => run.best).map((run) => `${run.run}: ${metricText(run.best.value)}`);
    return { traces, layout: this.form(this.across === "at" ? "time since the start" : "epochs trained by all trials", this.unit.suffix), words: `Best value so far. ${best.join("; ")}.` };
  }

  progressRows() {
    const rows = this.runs.flatMap(({ run, progress }) => progress.at.map((at, i) => [run, stopwatch(at), count(progress.epochs[i]), metricText(progress.best[i])]));
    return { head: ["Run", "After", "Epochs", "Best"], rows: rows.slice(0, 500) };
  }

  drawCurves() {
    if (!this.runs.some((run) => run.best_curve?.epoch.length)) return { empty: ["No trial is best yet", "Its curve begins with the first report of a run."] };
    const traces = this.traces(({ best_curve: curve }) => ({ x: curve?.epoch ?? [], y: curve?.value ?? [] }), false);
    const names = this.runs.filter((run) => run.best).map((run) => `${run.best.trial} of ${run.run}`);
    return { traces, layout: this.form("epoch", ""), words: `${listed(names)}.` };
  }

  tell(point, event) {
    const run = this.runs.find((one) => one.run === point.data.owner);
    const across = this.across === "at" && point.data.line.shape === "hv" ? ["after", duration(point.x * this.unit.seconds)] : ["epoch", count(point.x)];
    showTip(event.clientX, event.clientY, run.run, point.data.line.color, [[run.objective?.metric ?? "value", metricText(point.y)], across]);
  }

  table() {
    const { runs } = this;
    const values = runs.map((run) => run.best?.value ?? null);
    const best = this.bestOf(values);
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.best?.params ?? {})))].sort();
    const row = (text, cell) => h("tr", {}, h("th", { scope: "row" }, text), runs.map((run, i) => h("td", { class: "number" }, cell(run, i))));
    const mark = (text, i) => (i === best ? h("span", { class: "best-of" }, text, h("span", { class: "unseen" }, " best of all")) : text);
    const head = h("tr", {}, h("td", {}), runs.map((run) => h("th", { scope: "col", class: "number" }, h("a", { href: links.run(run.run) }, run.run))));
    const rows = [
      row("State", (run) => pill(run.state)),
      row("Objective", ({ objective }) => (objective ? `${objective.metric}, ${objective.mode}` : "–")),
      row("Best value", (run, i) => mark(metricText(values[i]), i)),
      row("Best trial", (run) => (run.best ? h("a", { href: links.trial(run.run, run.best.trial) }, `${run.best.trial}, epoch ${run.best.epoch}`) : "–")),
      row("Trials", (run) => count(run.trials)),
      row("Failed trials", (run) => count(run.counts?.failed)),
      row("Units", (run) => count(run.counts?.units)),
      row("Time", (run) => duration(run.ended_at ?? run.now)),
      row("Workers", (run) => count(run.counts?.workers)),
      row("Workers busy", (run) => percent(run.utilisation)),
      ...names.map((name) => row(`Best trial's ${name}`, (run) => param(run.best?.params?.[name]))),
    ];
    return h("table", {}, h("caption", { class: "unseen" }, "Figures of the runs"), h("thead", {}, head), h("tbody", {}, rows));
  }

  /** Which run has the best value, if that can be said. */
  bestOf(values) {
    const modes = new Set(this.runs.map(({ objective }) => JSON.stringify(objective)));
    const known = values.filter((value) => value !== null);
    if (modes.size !== 1 || known.length < 2) return -1;
    return values.indexOf(this.runs[0].objective?.mode === "max" ? Math.max(...known) : Math.min(...known));
  }
}
