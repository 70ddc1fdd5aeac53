// What is known of one run, kept up to date by its stream. Parts of the page read it and are told when it changed.

import { get, listen, runPath } from "./api.js";
import { Curves } from "./curve_data.js";

const MOST_EVENTS = 1000;
const STREAMED_EVENTS = 50;

/** One route that can be asked for what is new only. It asks again until it has all that the stream spoke of. */
class Part {
  constructor(store, name, path, take) {
    Object.assign(this, { store, name, path, take, version: 0, loaded: false, problem: null, asking: null });
  }

  /** Ask for what is missing; a second call while one runs waits for the same answer. */
  sync() {
    this.asking ??= this.fetchMissing().finally(() => {
      this.asking = null;
    });
    return this.asking;
  }

  async fetchMissing() {
    do {
      const { generation } = this.store;
      const before = this.version;
      try {
        const answer = await get(this.path({ since: before || null, generation: before ? generation : null }));
        if (this.store.closed || generation !== this.store.generation) return;
        this.take(answer);
        this.version = Math.max(this.version, answer.version);
        this.loaded = true;
        this.problem = null;
      } catch (error) {
        this.problem = error;
      }
      this.store.touch(this.name);
      if (this.problem || this.version === before) return;
    } while (this.version < this.store.version);
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
    this.forget();
  }

  forget() {
    this.generation = null;
    this.version = 0;
    this.summary = null;
    this.problem = null;
    this.trials = new Map();
    this.ranking = null;
    this.curves = new Curves(this);
    this.workers = { rows: [], partitions: [], loaded: false, now: 0, problem: null };
    this.events = { rows: [], more: false };
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
      this.summary = summary;
      this.ranking = null;
      this.problem = null;
      this.generation = summary.generation;
      this.version = summary.version;
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
      this.workers = { rows: answer.workers, partitions: answer.partitions, loaded: true, now: answer.now, problem: null };
    } catch (error) {
      this.workers.problem = error;
    }
    this.touch("workers");
  }

  async loadForecast() {
    // A run without a forecast is no problem: the page says that there is none.
    const answer = await get(runPath(this.run, "/forecast")).catch(() => null);
    this.forecast = answer?.forecast ?? null;
    this.touch("forecast");
  }

  // -- the stream

  hear(news) {
    const { generation, version } = news;
    if (this.loadAgain(news) || this.changedGeneration(generation)) return;
    if (version <= this.version) return;
    this.version = version;
    for (const part of Object.values(this.parts)) part.sync();
    this.curves.sync();
    this.loadWorkers();
    this.loadForecast();
    this.loadSummary();
  }

  async loadSummary() {
    this.summary = await get(runPath(this.run)).catch(() => this.summary);
    this.touch("run");
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
    if (this.loadAgain(update) || this.changedGeneration(update.generation)) return;
    this.version = Math.max(this.version, update.version);
    this.takeRun(update);
    this.parts.trials.follow(update, update.trials && { trials: update.trials });
    // As many as the stream brings at most: there may have been more.
    this.parts.events.follow(update, update.events.length < STREAMED_EVENTS ? { events: update.events, following: true } : null);
    this.parts.commands.follow(update, { commands: update.commands });
    this.curves.follow(update);
    if (update.workers) {
      this.workers = { ...this.workers, rows: update.workers, now: update.run.now };
      this.touch("workers");
    }
    if (update.forecast) {
      this.forecast = update.forecast;
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
      this.trials.set(trial.id, trial);
      for (const name of Object.keys(trial.params)) params.add(name);
    }
    if (params.size > before) this.summary = { ...this.summary, params: [...params].sort() };
  }

  takeEvents({ events, more, from, following }) {
    const known = new Set(from === 0 ? [] : this.events.rows.map((event) => event.n));
    const rows = [...(from === 0 ? [] : this.events.rows), ...events.filter((event) => !known.has(event.n))];
    rows.sort((one, other) => one.n - other.n);
    const cut = rows.length > MOST_EVENTS;
    this.events = { rows: rows.slice(-MOST_EVENTS), more: cut || (following ? this.events.more : Boolean(more) || this.events.more) };
  }

  takeCommands({ commands }) {
    for (const command of commands) this.commands.set(command.id, command);
  }

  /** Ask for events before those that are shown. */
  async earlierEvents() {
    const before = this.events.rows[0]?.n;
    const answer = await get(runPath(this.run, "/events", { before, limit: 200 }));
    this.events = { rows: [...answer.events, ...this.events.rows], more: answer.more };
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

  /** Whether one value of the objective is better than another. */
  better(one, other) {
    return this.objective?.mode === "max" ? one > other : one < other;
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
    for (const { topics: wanted, act } of [...this.listeners]) if (wanted.some((topic) => topics.has(topic))) act(topics);
  }
}
