// The live Gantt chart of a run's workers: what ran where and when, with hops and failures. It can be zoomed and panned.

import { get, runPath } from "./api.js";
import { onTheme } from "./colours.js";
import { choice, emptyState, h, setText } from "./dom.js";
import { count, duration, listed, percent, plural, stopwatch } from "./format.js";
import { GanttData } from "./gantt_data.js";
import { drawGantt, Frame, heightOf } from "./gantt_draw.js";
import { ganttKey } from "./gantt_key.js";
import { colourOf } from "./highlight.js";
import { hideTip, showTip } from "./tip.js";

const MOST_UNITS = 4000;
const MOST_HOPS = 1500;
// Up to so many units on the screen, the hops of all of them can be told apart.
const FEW_UNITS = 200;
const REFRESH = 3000;
const RANGES = [["all", "Whole run"], ["600", "10 min"], ["60", "1 min"]];

export class GanttCard {
  constructor(store) {
    Object.assign(this, { store, data: null, window: null, follow: "all", hopsOf: "auto", problem: null, stale: true });
    this.heard = { now: 0, when: performance.now() };
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "Workers over time. Arrow keys move, plus and minus zoom, 0 shows all.", "aria-describedby": "gantt-words", onkeydown: (event) => this.key(event) });
    this.frameBox = h("div", { class: "gantt-frame" }, this.canvas);
    this.words = h("p", { class: "chart-text", id: "gantt-words" }, "Loading");
    this.empty = h("div");
    const tools = h(
      "div",
      { class: "card-tools" },
      choice("Hops", [["auto", "Hops: auto"], ["all", "All"], ["none", "None"]], this.hopsOf, (value) => this.set("hopsOf", value)),
      (this.ranges = choice("Time", RANGES, this.follow, (value) => this.range(value))),
      h("div", { class: "tabs", role: "group", "aria-label": "Zoom" }, this.zoomer("−", "Zoom out", 1.6), this.zoomer("+", "Zoom in", 1 / 1.6)),
    );
    const head = h("div", { class: "card-head" }, h("h2", {}, "Workers over time"), tools);
    const figure = h("figure", { class: "gantt", "aria-label": "Workers over time" }, this.frameBox, this.empty, ganttKey(), this.words, this.makeTable());
    this.node = h("section", { class: "card wide", id: "part-gantt", tabindex: "-1", "aria-label": "Workers over time" }, head, h("div", { class: "card-body" }, figure));
    this.reserve();
    this.listen();
  }

  zoomer(sign, text, by) {
    return h("button", { type: "button", class: "tab", "aria-label": text, onclick: () => this.zoom(by) }, sign);
  }

  listen() {
    const { store, canvas } = this;
    this.watch = new IntersectionObserver(([entry]) => this.see(entry.isIntersecting), { rootMargin: "200px" });
    this.watch.observe(this.node);
    this.sizes = new ResizeObserver(() => this.redraw());
    this.sizes.observe(this.frameBox);
    this.ends = [
      store.on(["selection", "trials"], () => this.redraw()),
      store.on(["run"], () => this.check()),
      store.on(["workers"], () => this.reserve()),
      store.onUpdate((update) => this.hear(update)),
      onTheme(() => this.redraw()),
    ];
    // What runs now grows, although no news comes.
    this.timer = setInterval(() => this.seen && this.live && this.redraw(), 1000);
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    for (const lost of ["pointercancel", "lostpointercapture"]) canvas.addEventListener(lost, () => this.letGo());
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  close() {
    this.closed = true;
    clearInterval(this.timer);
    clearTimeout(this.soon);
    this.watch.disconnect();
    this.sizes.disconnect();
    this.ends.forEach((end) => end());
  }

  // -- time

  /** Whether time passes in the run. One whose driver gives no sign of life is not "running". */
  get live() {
    return this.store.summary?.state === "running";
  }

  get now() {
    return this.heard.now + (this.live ? (performance.now() - this.heard.when) / 1000 : 0);
  }

  /** Take the time of the run's last event. News without an event leave it, and the clock goes on from where it was. */
  hearTime(now) {
    if (now !== this.heard.now) this.heard = { now, when: performance.now() };
  }

  /** What is shown: what was zoomed to, or what is followed. */
  get span() {
    if (this.window) return this.window;
    const now = Math.max(this.now, 1);
    return { from: this.follow === "all" ? 0 : Math.max(0, now - Number(this.follow)), to: now };
  }

  // -- data

  see(seen) {
    this.seen = seen;
    if (seen && this.stale) this.load();
    else if (seen) this.redraw();
  }

  check() {
    const { generation, summary, version } = this.store;
    if (summary && !this.heard.now) this.hearTime(summary.now);
    if (generation !== this.generation) {
      this.generation = generation;
      this.stale = true;
      if (this.seen) this.load();
    } else if (this.data && this.version < version && this.showsNews()) this.loadSoon(REFRESH);
    this.redraw();
  }

  /** Whether what is new may lie in what is shown. */
  showsNews() {
    return !this.window || this.window.to >= this.data.to;
  }

  /** Ask for what is shown, soon; once for many calls. */
  loadSoon(wait) {
    this.stale = true;
    if (this.soon || !this.seen) return;
    this.soon = setTimeout(() => {
      this.soon = null;
      this.load();
    }, wait);
  }

  async load() {
    if (this.closed || this.loading || !this.store.summary) return;
    this.loading = true;
    this.stale = false;
    this.moved = false;
    const whole = !this.window && this.follow === "all";
    const { from, to } = this.span;
    const bins = Math.round(Math.min(2000, Math.max(50, (this.canvas.clientWidth || 800) / 2)));
    try {
      const answer = await get(runPath(this.store.run, "/gantt", { bins, from: whole ? null : from, to: whole || !this.window ? null : to }));
      if (this.closed) return;
      this.data = new GanttData(answer);
      this.hearTime(answer.now);
      this.version = answer.version;
      this.problem = null;
    } catch (error) {
      this.problem = error;
    }
    this.loading = false;
    this.redraw();
    if (this.moved) this.load();
    else if (this.stale) this.loadSoon(REFRESH);
  }

  hear(update) {
    this.hearTime(update.run.now);
    const { data } = this;
    if (!data) return;
    const fits = !data.bins && update.units && update.from <= this.version && data.numbers.size + update.units.number.length <= MOST_UNITS;
    data.setRunning(update.running);
    if (fits && data.takeStream(update.units) && !this.hasTrouble(update)) this.version = Math.max(this.version, update.version);
    else if (this.showsNews()) this.loadSoon(REFRESH);
    this.redraw();
  }

  /** Failures and absences come with the chart's own route only. */
  hasTrouble({ events }) {
    return events.some(({ level, kind }) => level !== "info" || kind === "WorkerJoined");
  }

  // -- zoom and pan

  set(name, value) {
    this[name] = value;
    this.redraw();
  }

  range(value) {
    this.follow = value;
    this.window = null;
    this.redraw();
    // The answer that is on its way is about another span.
    this.moved = true;
    this.load();
  }

  zoom(by, around = null) {
    const { from, to } = this.span;
    const middle = around ?? (from + to) / 2;
    this.show(middle - (middle - from) * by, middle + (to - middle) * by);
  }

  pan(share) {
    const { from, to } = this.span;
    this.show(from + share * (to - from), to + share * (to - from));
  }

  show(from, to) {
    const end = Math.max(this.now, 1);
    const wide = Math.min(Math.max(0.05, to - from), end);
    const start = Math.min(Math.max(0, from), end - wide);
    const whole = wide >= end * 0.999;
    this.window = whole ? null : { from: start, to: start + wide };
    if (whole) this.follow = "all";
    this.ranges.querySelectorAll(".tab").forEach((tab, i) => tab.setAttribute("aria-pressed", String(!this.window && RANGES[i][0] === this.follow)));
    this.redraw();
    this.loadSoon(250);
  }

  key(event) {
    const acts = { ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), "+": () => this.zoom(1 / 1.6), "=": () => this.zoom(1 / 1.6), "-": () => this.zoom(1.6), 0: () => this.show(0, Infinity), Home: () => this.show(0, Infinity) };
    if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    acts[event.key]();
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.frame.time(event.offsetX));
  }

  grab(event) {
    if (event.button !== 0) return;
    this.held = { x: event.offsetX, span: this.span, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
  }

  release(event) {
    const { held } = this;
    this.letGo();
    if (held && !held.moved) this.pick(event);
  }

  letGo() {
    this.held = null;
  }

  point(event) {
    if (!this.frame) return;
    if (!this.held) {
      this.tell(event);
      return;
    }
    const moved = event.offsetX - this.held.x;
    if (Math.abs(moved) < 4 && !this.held.moved) return;
    this.held.moved = true;
    const { from, to } = this.held.span;
    const seconds = (moved / (this.frame.width - this.frame.left)) * (to - from);
    this.show(from - seconds, to - seconds);
  }

  barAt(event) {
    const lane = this.frame?.lane(event.offsetY) ?? null;
    return lane === null || !this.data ? null : this.data.at(lane, this.frame.time(event.offsetX));
  }

  pick(event) {
    const bar = this.barAt(event);
    if (bar) this.store.select(bar.units.map((unit) => unit.trial), !bar.units.every((unit) => this.store.selection.has(unit.trial)));
  }

  tell(event) {
    const lane = this.frame.lane(event.offsetY);
    if (lane === null || !this.data || event.offsetX < this.frame.left) return hideTip();
    const time = this.frame.time(event.offsetX);
    const failure = this.data.failures.find((one) => one.worker === lane && Math.abs(this.frame.x(one.at) - event.offsetX) < 7);
    const [title, colour, pairs] = failure ? this.failureWords(failure) : this.barWords(this.data.at(lane, time), lane, time);
    return showTip(event.clientX, event.clientY, title, colour, pairs);
  }

  failureWords({ at, trial, kind, text }) {
    const what = { unit: "A unit failed", worker: "The worker was lost", load: "A partition was lost" }[kind];
    return [what, null, [["at", stopwatch(at)], ...(trial ? [["trial", trial]] : []), ["why", text || "not known"]]];
  }

  barWords(bar, lane, time) {
    const worker = this.data.lanes[lane];
    const place = [["worker", worker.id], ...(worker.host ? [["host", worker.host]] : [])];
    if (!bar) return [stopwatch(time), null, place];
    const [first] = bar.units;
    const names = bar.units.map((unit) => unit.trial);
    const title = names.length > 1 ? `${names.length} trials together` : names[0];
    const lasted = bar.end === null ? `${duration(this.now - bar.start)} so far` : duration(bar.end - bar.start);
    const members = names.length > 1 ? [["trials", names.length > 8 ? `${names.slice(0, 8).join(", ")} …` : listed(names)]] : [];
    return [title, names.length > 1 ? null : colourOf(this.store, names[0]), [...members, ["epoch", count(first.epoch)], ["partition", first.partition], ...(first.group > 1 ? [["group", `${first.group} workers`]] : []), ["does", bar.train ? "trains" : "evaluates"], ["from", stopwatch(bar.start)], ["took", lasted], ...place]];
  }

  // -- picture and words

  redraw() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      if (!this.closed && this.seen) this.draw();
    });
  }

  /** Keep the place of the chart free until it is loaded: what is below it must not move away from under a pointer. */
  reserve() {
    if (!this.data) this.canvas.style.height = `${heightOf(this.store.workers.rows.length)}px`;
  }

  draw() {
    const { data, canvas } = this;
    if (!data && !this.problem) return;
    const nothing = this.problem ? ["The chart cannot be loaded", this.problem.message] : !data.lanes.length ? ["No worker has come yet", "Lanes appear when workers join."] : null;
    this.frameBox.hidden = Boolean(nothing);
    this.empty.replaceChildren(...(nothing ? [emptyState(...nothing)] : []));
    if (nothing) return;
    const width = this.frameBox.clientWidth;
    const names = Math.min(110, 16 + 7 * Math.max(...data.lanes.map((worker) => worker.id.length)));
    this.frame = new Frame(width, data.lanes.length, this.span, names);
    const scale = Math.min(3, devicePixelRatio || 1);
    const [wide, high] = [Math.round(width * scale), Math.round(this.frame.height * scale)];
    if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
    canvas.style.height = `${this.frame.height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const all = data.bins ? [] : data.hopsWithin(this.frame.from, this.frame.to);
    const hops = this.drawnOf(all);
    drawGantt(context, this.frame, { data, now: this.now, colour: (trial) => colourOf(this.store, trial), chosen: this.store.selection, hops });
    setText(this.words, this.inWords(all.length, hops.length));
    if (this.details.open) this.fillTable();
  }

  /** Which hops are drawn: with "auto" those of selected trials or, while none is selected, all if few units are shown. */
  drawnOf(hops) {
    const { data, frame, hopsOf } = this;
    const { selection } = this.store;
    if (hopsOf === "none") return [];
    if (hopsOf === "auto" && selection.size) return hops.filter(({ trial }) => selection.has(trial)).slice(-MOST_HOPS);
    return hopsOf === "all" || data.countUnits(frame.from, frame.to) <= FEW_UNITS ? hops.slice(-MOST_HOPS) : [];
  }

  inWords(hops, drawn) {
    const { data } = this;
    const { from, to } = this.frame;
    const hopped = data.bins ? "" : `, ${plural(hops, "hop")}${drawn < hops ? ` (${drawn ? count(drawn) : "none"} drawn)` : ""}`;
    const units = data.countUnits(from, to);
    const failed = data.failuresWithin(from, to).length;
    const failures = failed ? `, ${plural(failed, "failure")}` : "";
    const coarse = data.bins ? " Too many units to draw each: a bar's colour is the trial that ran in the middle of its time. Zoom in for single units." : "";
    return `${plural(data.lanes.length, "worker")} from ${stopwatch(from)} to ${stopwatch(to)}: ${plural(units, "unit")}${hopped}${failures}.${coarse}`;
  }

  makeTable() {
    this.frameTable = h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Workers over time, as a table" });
    this.details = h("details", { class: "chart-data", ontoggle: () => this.data && this.fillTable() }, h("summary", {}, "Show as a table"), this.frameTable);
    return this.details;
  }

  fillTable() {
    const head = ["Worker", "Units", "Busy", "Failures"].map((text, i) => h("th", { scope: "col", class: i ? "number" : null }, text));
    const { data } = this;
    const { from, to } = this.span;
    const rows = data.lanes.map((worker, lane) => {
      const figures = [count(data.countUnits(from, to, lane)), percent(data.busyShare(from, to, lane, this.now)), count(data.failuresWithin(from, to, lane).length)];
      return h("tr", {}, h("th", { scope: "row" }, worker.id), figures.map((text) => h("td", { class: "number" }, text)));
    });
    this.frameTable.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
  }
}
