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
      this.put({ number, lane: units.worker[i], trial: trial[units.index[i]], epoch: units.epoch[i], partition: part, start: units.start[i], end: units.end[i], train: units.train[i] === 1, width: units.width[i], group: units.group[i], rank: units.rank[i] });
    });
  }

  /** Take units that the stream brought; false if one belongs to a worker that is not known here. */
  takeStream(units) {
    if (units.worker.some((worker) => !this.laneOf.has(worker))) return false;
    units.number.forEach((number, i) => {
      const lane = this.laneOf.get(units.worker[i]);
      this.put({ number, lane, trial: units.trial[i], epoch: units.epoch[i], partition: units.partition[i], start: units.start[i], end: units.end[i], train: Boolean(units.train[i]), width: units.width[i], group: units.group[i], rank: units.rank[i] });
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

  /**
   * The hops between two times, in the order in which they ended: from the end of a unit of training to the next one of the
   * same trial, on another worker. What a group trained leaves its first worker, and comes to all of the next one.
   */
  hopsWithin(from, to) {
    const units = this.bars.flatMap((bar) => bar.units).concat(this.running.flatMap((bar) => bar.units));
    const byTrial = new Map();
    for (const unit of units) {
      if (!(unit.train ?? unit.kind === "train")) continue;
      if (!byTrial.has(unit.trial)) byTrial.set(unit.trial, []);
      byTrial.get(unit.trial).push(unit);
    }
    const found = [];
    for (const [trial, own] of byTrial) {
      for (const [before, after] of withEarlier(own)) {
        if (before.lane !== after.lane && before.end && before.end >= from && after.start <= to) found.push({ trial, from: before.lane, left: before.end, to: after.lane, came: after.start });
      }
    }
    return found.sort((one, other) => one.came - other.came);
  }

  /** How many units ran between two times, and have ended since: on one lane or, with null, on all. */
  countUnits(from, to, lane = null) {
    const isWanted = (one) => lane === null || one === lane;
    if (!this.bins) return sum(this.bars.filter((bar) => isWanted(bar.lane) && bar.end >= from && bar.start <= to).map((bar) => bar.units.length));
    const seconds = this.binSeconds(from, to);
    return sum(this.bins.ended.filter((_, one) => isWanted(one)).map((counts) => sum(counts.filter((_, i) => seconds[i] > 0))));
  }

  /** Which share of the time between two times a worker was at work; what runs now counts until `now`. */
  busyShare(from, to, lane, now) {
    const seconds = this.bins ? this.binSeconds(from, to) : [];
    const ended = this.bins ? this.bins.busy[lane].map((share, i) => share * seconds[i]) : this.bars.filter((bar) => bar.lane === lane).map((bar) => overlap(bar.start, bar.end, from, to));
    const running = this.running.filter((bar) => bar.lane === lane).map((bar) => overlap(bar.start, now, from, to));
    return Math.min(1, (sum(ended) + sum(running)) / (to - from));
  }

  /** Of each bin, how many of its seconds lie between two times. */
  binSeconds(from, to) {
    const { step, ended, from_at: begin } = this.bins;
    return (ended[0] ?? []).map((_, i) => overlap(begin + i * step, begin + (i + 1) * step, from, to));
  }

  /** The failures between two times, on one lane or, with null, on all. */
  failuresWithin(from, to, lane = null) {
    return this.failures.filter(({ at, worker }) => from <= at && at <= to && (lane === null || worker === lane));
  }

  /** The bar at a time on a lane, or null. */
  at(lane, time) {
    const running = this.running.find((bar) => bar.lane === lane && bar.start <= time);
    return running ?? this.bars.find((bar) => bar.lane === lane && bar.start <= time && time <= bar.end) ?? null;
  }
}

/** How long two spans of time have in common. */
function overlap(start, end, from, to) {
  return Math.max(0, Math.min(end, to) - Math.max(start, from));
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** Units of one trial, each beside what its first worker did of the unit before. */
export function withEarlier(units) {
  const pairs = [];
  let [before, now] = [null, null];
  for (const unit of units.toSorted((one, other) => one.start - other.start || one.rank - other.rank)) {
    if (!unit.rank) [before, now] = [now, unit];
    if (before) pairs.push([before, unit]);
  }
  return pairs;
}
