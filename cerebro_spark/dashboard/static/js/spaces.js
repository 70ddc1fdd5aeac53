// What values a param takes over the trials: how to lay them along an axis.

import { number, param } from "./format.js";

/** Values along an axis from 0 to 1. `place(value)` is null for what has no place. */
export class Space {
  constructor(name, values) {
    this.name = name;
    const known = values.filter((value) => value !== undefined && value !== null);
    this.numeric = known.length > 0 && known.every((value) => typeof value === "number" && Number.isFinite(value));
    if (this.numeric) this.setNumbers(known);
    else this.setNames(known);
  }

  setNumbers(values) {
    this.low = values.reduce((a, b) => Math.min(a, b), Infinity);
    this.high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    this.log = this.low > 0 && this.high / this.low >= 50;
    this.varies = this.low < this.high;
  }

  setNames(values) {
    this.names = [...new Set(values.map(param))].sort();
    this.varies = this.names.length > 1;
  }

  place(value) {
    if (value === undefined || value === null) return null;
    if (!this.numeric) return this.names.length < 2 ? 0.5 : this.names.indexOf(param(value)) / (this.names.length - 1);
    if (!this.varies) return 0.5;
    const of = this.log ? Math.log : (x) => x;
    return (of(value) - of(this.low)) / (of(this.high) - of(this.low));
  }

  /** [place, text] of the marks of its axis. */
  get marks() {
    if (!this.numeric) return this.names.slice(0, 12).map((name) => [this.place(name), name]);
    if (!this.varies) return [[0.5, number(this.low)]];
    const middle = this.log ? Math.sqrt(this.low * this.high) : (this.low + this.high) / 2;
    return [[0, number(this.low, 3)], [0.5, number(middle, 3)], [1, number(this.high, 3)]];
  }
}

/** The spaces of params that differ between trials. */
export function varying(trials, names) {
  return names.map((name) => new Space(name, trials.map((trial) => trial.params[name]))).filter((space) => space.varies);
}
