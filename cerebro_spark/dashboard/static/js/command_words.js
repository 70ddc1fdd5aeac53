// For each command: its dialog's words, what follows from it, and its inputs. Every sentence says what the run will do, and
// the title of a command for a whole run names that run.

import { clonedParams } from "./clone_form.js";
import { h } from "./dom.js";
import { clock, duration } from "./format.js";

/** What the forecast says would follow from a command, or null. */
export function whatIf(store, key) {
  const { forecast } = store;
  const answer = forecast?.what_if?.[key];
  if (!answer?.done_at) return null;
  // Of a run that stands still it is not known when it would be done.
  if (!forecast.done_at) return `Forecast: the run would be done at ${clock(answer.done_at)}.`;
  const saved = forecast.done_at - answer.done_at;
  const change = Math.abs(saved) < 1 ? "as without it" : saved > 0 ? `${duration(saved)} earlier` : `${duration(-saved)} later`;
  return `Forecast: the run would be done at ${clock(answer.done_at)}, ${change}.`;
}

function epochsField(text, hint) {
  const input = h("input", { type: "number", min: "1", step: "1", inputmode: "numeric", placeholder: "as planned" });
  const node = h("label", { class: "field" }, h("span", {}, text), input, h("span", { class: "hint" }, hint));
  const read = () => {
    if (input.value === "" && !input.validity.badInput) return {};
    const epochs = Number(input.value);
    if (!Number.isInteger(epochs) || epochs < 1) throw new Error("Epochs must be a whole number, at least 1; or leave the field empty.");
    return { epochs };
  };
  return { node, read };
}

/** Fields that are shown together; what they read is put together. */
function together(...fields) {
  return { node: h("div", { class: "inputs" }, fields.map(({ node }) => node)), read: () => Object.assign({}, ...fields.map(({ read }) => read())) };
}

function stopTrial({ trial }, store) {
  return {
    title: `Stop ${trial.id}?`,
    says: [
      `${trial.id} trains no further. A unit of it that runs now comes to its end; units that wait at a worker are withdrawn.`,
      "Its last checkpoint is kept until the run ends, so it can be resumed.",
    ],
    consequence: whatIf(store, `stop_trial ${trial.id}`),
    button: `Stop ${trial.id}`,
    danger: true,
    command: { trial: trial.id },
  };
}

function resumeTrial({ trial }, store) {
  return {
    title: `Resume ${trial.id}?`,
    says: [`${trial.id} goes on from its last checkpoint, after epoch ${trial.last} of ${trial.until}.`],
    consequence: whatIf(store, `resume_trial ${trial.id}`),
    fields: together(epochsField("Further epochs", "Leave it empty to go as far as it was to go.")),
    button: `Resume ${trial.id}`,
    command: { trial: trial.id },
  };
}

function clone({ trial }, store) {
  return {
    title: `Clone ${trial.id}`,
    says: [`A new trial begins, with the params of ${trial.id} except for those that you change. ${trial.id} itself is left as it is.`],
    consequence: whatIf(store, `clone ${trial.id}`),
    fields: together(clonedParams(trial.params), warmStart(trial), epochsField("Epochs", `Leave it empty to go as far as ${trial.id} was to go.`)),
    button: "Start the clone",
    command: { trial: trial.id },
  };
}

function warmStart(trial) {
  const input = h("input", { type: "checkbox" });
  input.checked = true;
  const node = h("label", { class: "inline-field" }, input, `Begin with the weights of ${trial.id}`);
  return { node, read: () => ({ warm_start: input.checked }) };
}

function addWorkers(_, store) {
  const input = h("input", { type: "number", min: "1", step: "1", value: "1", required: true, inputmode: "numeric" });
  const read = () => {
    const workers = Number(input.value);
    if (!Number.isInteger(workers) || workers < 1) throw new Error("Say how many workers: a whole number, at least 1.");
    return { workers };
  };
  const now = store.summary?.counts?.workers ?? 0;
  return {
    title: `Add workers to ${store.run}?`,
    says: [`The cluster is asked for more workers; there ${now === 1 ? "is 1" : `are ${now}`} now. Each loads its partitions, then takes its share of the units.`],
    fields: { node: h("label", { class: "field" }, h("span", {}, "How many more"), input), read },
    button: "Add workers",
  };
}

function removeWorker({ worker }, store) {
  return {
    title: `Remove ${worker.id} from ${store.run}?`,
    says: [`${worker.id} on ${worker.host || "its host"} takes no new unit. The one that it runs comes to its end, then it leaves; others load what only it held.`],
    consequence: whatIf(store, `remove_worker ${worker.id}`),
    button: `Remove ${worker.id}`,
    danger: true,
    command: { worker: worker.id },
  };
}

function pause(_, store) {
  return {
    title: `Pause ${store.run}?`,
    says: ["Units that run now come to their end, and no new one begins. Workers stay, and the time budget stands still until you unpause."],
    button: "Pause",
  };
}

function unpause(_, store) {
  return { consequence: whatIf(store, "unpause"), title: `Go on with ${store.run}?`, says: ["Units begin again where they were left, and the time budget runs on."], button: "Unpause" };
}

function end(_, store) {
  return {
    title: `End ${store.run}?`,
    says: ["Units that run now come to their end, then the run is over. Its result holds all epochs that were reported, and can be used as that of any other run."],
    consequence: whatIf(store, "end"),
    button: "End the run",
    danger: true,
  };
}

function kill(_, store) {
  return {
    title: `Kill ${store.run}?`,
    says: ["The run stops at once. Units that run now are lost. What was logged before stays: `cs.resume` can go on with it."],
    button: "Kill the run",
    danger: true,
  };
}

export const WORDS = { stop_trial: stopTrial, resume_trial: resumeTrial, clone, add_workers: addWorkers, remove_worker: removeWorker, pause, unpause, end, kill };
