// What is known of one run, kept up to date by its stream. Parts of the page read it and are told when it changed.

import { get, listen, runPath } from "./api.js";
import { Curves } from "./curve_data.js";
import { fetchMissing } from "./fetch_missing.js";

const MOST_EVENTS = 1000;
const STREAMED_EVENTS = 50;

/** One route that can be asked for what is new only. It asks again until it has all that the stream spoke of. */
class Part {
  constructor(store, name, path, take) {
    Object.assign(this, { store, name, path, take, version: 0, loaded: false, problem: null, asking: null });
  }

  /** Ask for what is missing; a second call while one runs waits for the same answer. */
  sync() {
    this.asking ??= fetchMissing(this.store, this, this.name, (query) => get(this.path(query))).finally(() => {
      this.asking = null;
    });
    return this.asking;
  }

  /** Take what the stream brought, or ask for it if the stream left something out. */
  follow(update, rows) {
    if (!this.loaded || this.asking || update.from > this.version || rows === null || rows === undefined) {
      this.sync();
      return;
    }
    this.take(rows);
    this.version = Math.max(this.version, update.version);
    this.store.touch(this.name);
  }
}

export class RunStore {
  constructor(run) {
    this.run = run;
    this.listeners = new Set();
    this.hearers = new Set();
    this.touched = new Set();
    this.closed = false;
    this.link = "";
    this.selection = new Set();
    // Counts how often a trial got other params than it had.
    this.paramChanges = 0;
    this.forget();
  }

  forget() {
    this.generation = null;
    this.version = 0;
    this.summary = null;
    this.problem = null;
    this.gone = null;
    this.trials = new Map();
    this.ranking = null;
    this.curves = new Curves(this);
    this.workers = { rows: [], partitions: [], loaded: false, now: 0, problem: null };
    this.events = { rows: [], more: false, asked: false };
    this.commands = new Map();
    this.forecast = null;
    const path = (rest) => (query) => runPath(this.run, rest, query);
    this.parts = {
      trials: new Part(this, "trials", path("/trials"), (answer) => this.takeTrials(answer)),
      events: new Part(this, "events", path("/events"), (answer) => this.takeEvents(answer)),
      commands: new Part(this, "commands", () => runPath(this.run, "/commands"), (answer) => this.takeCommands(answer)),
    };
  }

  /** Load all there is, then listen. */
  async open() {
    await this.load();
    if (this.closed) return;
    const handlers = {
      hello: (hello) => this.hear(hello),
      update: (update) => this.follow(update),
      gone: (gone) => this.lose(gone),
    };
    this.close_ = listen(runPath(this.run, "/stream"), handlers, (state) => this.setLink(state));
  }

  close() {
    this.closed = true;
    this.close_?.();
  }

  async load() {
    try {
      const summary = await get(runPath(this.run));
      if (this.closed) return;
      this.generation = summary.generation;
      this.problem = null;
      this.takeSummary(summary);
    } catch (error) {
      this.problem = error;
      this.touch("run");
      return;
    }
    this.touch("run");
    const parts = Object.values(this.parts).map((part) => part.sync());
    await Promise.all([...parts, this.curves.use(this.curves.metric), this.loadWorkers(), this.loadForecast()]);
  }

  async loadWorkers() {
    try {
      const answer = await get(runPath(this.run, "/workers"));
      if (this.isOlder(answer, this.workers)) return;
      this.workers = { rows: answer.workers, partitions: answer.partitions, loaded: true, now: answer.now, problem: null, generation: answer.generation, version: answer.version };
    } catch (error) {
      this.workers.problem = error;
    }
    this.touch("workers");
  }

  async loadForecast() {
    // If it fails, what is known stays; the stream says what comes later.
    const answer = await get(runPath(this.run, "/forecast")).catch(() => null);
    if (!answer || (answer.forecast && answer.forecast.made_at < (this.forecast?.made_at ?? 0))) return;
    this.forecast = answer.forecast ?? null;
    this.touch("forecast");
  }

  // -- the stream

  hear(news) {
    if (this.beginsAgain(news)) return;
    // How the run is may have changed without an event: its driver may have fallen silent.
    this.loadSummary();
    if (news.version <= this.version) return;
    this.version = news.version;
    for (const part of Object.values(this.parts)) part.sync();
    this.curves.sync();
    this.loadWorkers();
    this.loadForecast();
  }

  /** Whether news do not go on from what is known: then all is loaded anew, as soon as there is something. */
  beginsAgain(news) {
    // Of a log that was deleted the server knows nothing yet. What was read of it stays on the page.
    if (this.gone !== null && news.version === 0) return true;
    this.gone = null;
    return this.loadAgain(news) || this.changedGeneration(news.generation);
  }

  async loadSummary() {
    // If it fails, what is known stays; the stream says what comes later.
    const summary = await get(runPath(this.run)).catch(() => null);
    if (summary && summary.generation === this.generation) this.takeSummary(summary);
    this.touch("run");
  }

  takeSummary(summary) {
    this.version = Math.max(this.version, summary.version);
    if (this.isOlder(summary, this.summary)) return;
    this.summary = summary;
    this.ranking = null;
  }

  /** Whether an answer tells less than is known: the stream may have overtaken it. */
  isOlder(answer, known) {
    return known?.generation === answer.generation && answer.version < known.version;
  }

  /** Load the run if that failed before: the stream speaks of it, so it can be read now. */
  loadAgain(news) {
    if (this.summary) return false;
    this.load().then(() => this.summary && this.hear(news));
    return true;
  }

  changedGeneration(generation) {
    if (this.generation === null || generation === this.generation) return false;
    this.forget();
    this.load();
    return true;
  }

  follow(update) {
    if (this.beginsAgain(update)) return;
    this.version = Math.max(this.version, update.version);
    if (!this.isOlder(update.run, this.summary)) this.takeRun(update);
    this.parts.trials.follow(update, update.trials && { trials: update.trials });
    // As many as the stream brings at most: there may have been more.
    this.parts.events.follow(update, update.events.length < STREAMED_EVENTS ? { events: update.events } : null);
    this.parts.commands.follow(update, { commands: update.commands });
    this.curves.follow(update);
    if (update.workers && !this.isOlder(update, this.workers)) {
      const { generation, version } = update;
      this.workers = { ...this.workers, rows: update.workers, now: update.run.now, generation, version };
      this.touch("workers");
    }
    // Every update has it: without one, what was foreseen is void, since another driver goes on with the run.
    if (update.forecast || this.forecast) {
      this.forecast = update.forecast ?? null;
      this.touch("forecast");
    }
    for (const hear of this.hearers) hear(update);
  }

  lose({ reason }) {
    this.gone = reason;
    this.touch("run");
  }

  setLink(state) {
    this.link = state;
    this.touch("link");
  }

  // -- what answers bring

  takeRun(update) {
    const metrics = Object.keys(update.points?.metrics ?? {});
    const known = this.summary ?? {};
    const names = metrics.some((name) => !known.metrics?.includes(name)) ? [...new Set([...(known.metrics ?? []), ...metrics])].sort() : known.metrics;
    this.summary = { ...known, ...update.run, metrics: names ?? [], paused: update.run.paused ?? update.run.state === "paused" };
    this.ranking = null;
    this.touch("run");
  }

  takeTrials({ trials, from }) {
    this.ranking = null;
    if (from === 0) this.trials.clear();
    const params = new Set(this.summary?.params ?? []);
    const before = params.size;
    for (const trial of trials) {
      if (JSON.stringify(this.trials.get(trial.id)?.params) !== JSON.stringify(trial.params)) this.paramChanges += 1;
      this.trials.set(trial.id, trial);
      for (const name of Object.keys(trial.params)) params.add(name);
    }
    if (params.size > before) this.summary = { ...this.summary, params: [...params].sort() };
  }

  takeEvents({ events, more, from }) {
    // If the answer left some out, those that were known do not meet it: there would be a hole that nothing fills.
    const before = from === 0 || more ? { rows: [], more: Boolean(more), asked: false } : this.events;
    const known = new Set(before.rows.map((event) => event.n));
    const rows = [...before.rows, ...events.filter((event) => !known.has(event.n))].sort((one, other) => one.n - other.n);
    const cut = !before.asked && rows.length > MOST_EVENTS;
    this.events = { rows: cut ? rows.slice(-MOST_EVENTS) : rows, more: cut || before.more, asked: before.asked };
  }

  takeCommands({ commands }) {
    for (const command of commands) this.commands.set(command.id, command);
  }

  /** Ask for events before those that are shown. From then on none is cut off: somebody wants to read them. */
  async earlierEvents() {
    const { generation } = this;
    const before = this.events.rows[0]?.n;
    this.events.asked = true;
    const answer = await get(runPath(this.run, "/events", { before, limit: 200 }));
    // Meanwhile others may have come in their place.
    if (generation !== this.generation || this.events.rows[0]?.n !== before) return;
    this.events = { rows: [...answer.events, ...this.events.rows], more: answer.more, asked: true };
    this.touch("events");
  }

  // -- selection

  select(ids, on) {
    for (const id of ids) {
      if (on) this.selection.add(id);
      else this.selection.delete(id);
    }
    this.touch("selection");
  }

  toggle(id) {
    this.select([id], !this.selection.has(id));
  }

  // -- what can be asked

  get objective() {
    return this.summary?.objective ?? null;
  }

  get over() {
    return Boolean(this.summary?.finished) || ["finished", "interrupted"].includes(this.summary?.state);
  }

  /** How the connection is: "live", "over" if nothing more is to come, "lost", or "" while there is none. */
  get linkState() {
    return this.link === "live" && this.over ? "over" : this.link;
  }

  /** Trials, best first; then those without a value; last those that failed. A new list for each call. */
  ranked() {
    // Many parts ask after each update: with a thousand trials sorting once is enough.
    this.ranking ??= this.rank();
    return [...this.ranking];
  }

  rank() {
    const sign = this.objective?.mode === "max" ? -1 : 1;
    const keys = [...this.trials.values()].map((trial) => {
      const none = typeof trial.best_value !== "number";
      return { trial, failed: trial.status === "failed", none, value: none ? 0 : sign * trial.best_value };
    });
    keys.sort((a, b) => a.failed - b.failed || a.none - b.none || a.value - b.value || a.trial.number - b.trial.number);
    return keys.map(({ trial }) => trial);
  }

  // -- who is told

  /** Call `act(topics)` soon after one of `topics` changed, once for all changes of a frame. */
  on(topics, act) {
    const listener = { topics, act };
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Call `act(update)` with every update of the stream, as it is. */
  onUpdate(act) {
    this.hearers.add(act);
    return () => this.hearers.delete(act);
  }

  touch(topic) {
    this.touched.add(topic);
    this.frame ??= requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.frame = null;
    if (this.closed) return;
    const topics = this.touched;
    this.touched = new Set();
    for (const { topics: wanted, act } of [...this.listeners]) if (wanted.some((topic) => topics.has(topic))) this.tell(act, topics);
  }

  /** Tell one part of the page. If it fails, the others still hear, and the console says so. */
  tell(act, topics) {
    try {
      act(topics);
    } catch (error) {
      reportError(error);
    }
  }
}
