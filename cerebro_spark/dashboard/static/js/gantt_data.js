// What a Gantt chart of a run shows: bars, stripes of units that ran together, hops, failures, absences.

/** The bars of one answer of the server, ready to be drawn. */
export class GanttData {
  constructor(answer) {
    this.bins = answer.detail === "bins" ? answer : null;
    this.lanes = answer.workers;
    this.laneOf = new Map(answer.workers.map((worker, index) => [worker.id, index]));
    this.absences = answer.absences;
    this.failures = answer.failures;
    this.from = answer.from_at;
    this.to = answer.to_at;
    this.trials = answer.trial ?? [];
    this.bars = [];
    this.groups = new Map();
    this.numbers = new Set();
    this.setRunning(answer.running);
    if (!this.bins) this.takeAnswer(answer);
  }

  takeAnswer({ units, trial, partition }) {
    units.number.forEach((number, i) => {
      const part = partition[units.part[i]];
      this.put({ number, lane: units.worker[i], trial: trial[units.index[i]], epoch: units.epoch[i], partition: part, start: units.start[i], end: units.end[i], train: units.train[i] === 1, width: units.width[i] });
    });
  }

  /** Take units that the stream brought; false if one belongs to a worker that is not known here. */
  takeStream(units) {
    if (units.worker.some((worker) => !this.laneOf.has(worker))) return false;
    units.number.forEach((number, i) => {
      const lane = this.laneOf.get(units.worker[i]);
      this.put({ number, lane, trial: units.trial[i], epoch: units.epoch[i], partition: units.partition[i], start: units.start[i], end: units.end[i], train: Boolean(units.train[i]), width: units.width[i] });
    });
    return true;
  }

  put(unit) {
    if (this.numbers.has(unit.number)) return;
    this.numbers.add(unit.number);
    const key = unit.width > 1 ? `${unit.lane} ${unit.start} ${unit.end}` : null;
    const bar = key && this.groups.get(key);
    if (bar) {
      bar.units.push(unit);
      return;
    }
    const fresh = { lane: unit.lane, start: unit.start, end: unit.end, train: unit.train, units: [unit] };
    this.bars.push(fresh);
    if (key) this.groups.set(key, fresh);
  }

  /** Set what runs now. `running` names workers by number or by name. */
  setRunning(running) {
    const bars = new Map();
    for (const unit of running ?? []) {
      const lane = typeof unit.worker === "number" ? unit.worker : this.laneOf.get(unit.worker);
      if (lane === undefined) continue;
      const key = `${lane} ${unit.start}`;
      const bar = bars.get(key) ?? { lane, start: unit.start, end: null, train: unit.kind === "train", units: [] };
      bar.units.push({ ...unit, lane });
      bars.set(key, bar);
    }
    this.running = [...bars.values()];
  }

  /** The hops of some trials, or of all with null: from the end of a unit to the next one, on another worker. */
  hops(trials) {
    const units = this.bars.flatMap((bar) => bar.units).concat(this.running.flatMap((bar) => bar.units));
    const byTrial = new Map();
    for (const unit of units) {
      if (!(trials === null || trials.has(unit.trial)) || !(unit.train ?? unit.kind === "train")) continue;
      if (!byTrial.has(unit.trial)) byTrial.set(unit.trial, []);
      byTrial.get(unit.trial).push(unit);
    }
    const found = [];
    for (const [trial, own] of byTrial) {
      own.sort((one, other) => one.start - other.start);
      for (let i = 1; i < own.length; i += 1) {
        const [before, after] = [own[i - 1], own[i]];
        if (before.lane !== after.lane && before.end) found.push({ trial, from: before.lane, left: before.end, to: after.lane, came: after.start });
      }
    }
    return found;
  }

  /** The bar at a time on a lane, or null. */
  at(lane, time) {
    const running = this.running.find((bar) => bar.lane === lane && bar.start <= time);
    return running ?? this.bars.find((bar) => bar.lane === lane && bar.start <= time && time <= bar.end) ?? null;
  }
}
