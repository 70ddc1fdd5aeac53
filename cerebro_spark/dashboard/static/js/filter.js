// Which trials a typed filter lets through: words, and conditions such as "lr<0.01", "status=failed", "val_auc>=0.9".

import { param } from "./format.js";

const CONDITION = /^([^\s<>=!]+)(<=|>=|!=|=|<|>)(.+)$/;

/** Split at spaces, but not within quotation marks. */
function wordsOf(text) {
  return (text.match(/(?:[^\s"]+|"[^"]*")+/g) ?? []).map((word) => word.replaceAll('"', ""));
}

/** Return the test that a filter stands for. All of its words must hold. */
export function filterOf(text) {
  const tests = wordsOf(text).map(testOf);
  return (trial) => tests.every((test) => test(trial));
}

function testOf(word) {
  const found = CONDITION.exec(word);
  return found ? conditionOf(...found.slice(1)) : containsOf(word.toLowerCase());
}

function containsOf(word) {
  return (trial) => {
    const params = Object.entries(trial.params).map(([name, value]) => `${name}=${param(value)}`);
    return [trial.id, trial.status, trial.error ?? "", ...params].some((text) => text.toLowerCase().includes(word));
  };
}

function conditionOf(name, sign, wanted) {
  return (trial) => {
    const value = valueOf(trial, name);
    if (value === undefined || value === null) return false;
    const numbers = typeof value === "number" && wanted.trim() !== "" && !Number.isNaN(Number(wanted));
    return compare(numbers ? value : param(value).toLowerCase(), sign, numbers ? Number(wanted) : wanted.toLowerCase());
  };
}

function compare(value, sign, wanted) {
  switch (sign) {
    case "<": return value < wanted;
    case ">": return value > wanted;
    case "<=": return value <= wanted;
    case ">=": return value >= wanted;
    case "!=": return value !== wanted;
    default: return value === wanted;
  }
}

/** What a name in a filter or a column stands for: a fact of the trial, a param, or a metric at its best epoch. */
export function valueOf(trial, name) {
  const facts = { trial: trial.id, id: trial.id, status: trial.status, state: trial.status, epoch: trial.last, epochs: trial.epochs, number: trial.number, parent: trial.parent };
  // Of their own only: every object has a "constructor", which nobody means.
  const places = [facts, trial.params, trial.best_metrics ?? {}, trial.metrics ?? {}];
  return places.find((place) => Object.hasOwn(place, name))?.[name];
}
