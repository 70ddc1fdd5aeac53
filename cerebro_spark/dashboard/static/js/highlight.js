// Which trials stand out in charts: those that are selected or, while none is, the best ones.

import { trialColour, trialStyle } from "./colours.js";
import { h, reconcile, setAttr } from "./dom.js";
import { metric as metricText, param } from "./format.js";
import { showTip } from "./tip.js";

const MOST = 8;
const MOST_PARAMS = 8;

/** The trials that stand out, best first, and whether somebody chose them. */
export function standingOut(store, most = MOST) {
  if (store.selection.size) return { chosen: true, trials: store.ranked().filter((trial) => store.selection.has(trial.id)) };
  const trials = store.ranked().filter((trial) => typeof trial.best_value === "number").slice(0, most);
  return { chosen: false, trials };
}

/** The colour of a trial, by its id, for what is drawn. */
export function colourOf(store, id) {
  return trialColour(store.trials.get(id)?.number);
}

/** The same for a swatch, which follows the theme by itself. */
export function swatchColour(store, id) {
  return trialStyle(store.trials.get(id)?.number);
}

/** Show what is known of a trial beside the pointer. */
export function tellTrial(store, id, event, pairs) {
  const trial = store.trials.get(id);
  const params = Object.entries(trial?.params ?? {});
  const rest = params.length > MOST_PARAMS ? [["…", `${params.length - MOST_PARAMS} more`]] : [];
  const shown = params.slice(0, MOST_PARAMS).map(([name, value]) => [name, param(value)]);
  const state = trial ? [["state", trial.status]] : [];
  showTip(event.clientX, event.clientY, id, colourOf(store, id), [...pairs, ...state, ...shown, ...rest]);
}

/** A list of the trials that stand out, as buttons that select. */
export function legend(store) {
  const node = h("ul", { class: "legend-list", "aria-label": "Trials that stand out in the charts" });
  node.update = () => {
    const { trials } = standingOut(store);
    reconcile(node, trials.slice(0, 16), (trial) => trial.id, (trial) => legendItem(store, trial.id));
  };
  return node;
}

function legendItem(store, id) {
  const swatch = h("span", { class: "swatch" });
  const value = h("span", { class: "muted" });
  const button = h("button", { type: "button", class: "chip", onclick: () => store.toggle(id) }, swatch, h("span", {}, id), value);
  const node = h("li", {}, button);
  node.update = (trial) => {
    swatch.style.setProperty("--swatch", swatchColour(store, id));
    value.textContent = metricText(trial.best_value);
    setAttr(button, "aria-pressed", store.selection.has(id));
  };
  return node;
}
