// The params of a clone: each as it is in the trial, to be changed. What is not changed is not sent.

import { h } from "./dom.js";

/** A value as it is typed: text stays text, everything else is JSON. */
function typed(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** What was typed, as a value of the same kind as before. */
export function read(name, text, before) {
  if (typeof before === "string") return text;
  if (typeof before === "number") {
    const value = Number(text);
    if (text.trim() === "" || !Number.isFinite(value)) throw new Error(`${name} must be a number, as it is in the trial.`);
    return value;
  }
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${name} must be JSON, such as ${JSON.stringify(before)}.`);
  }
}

/** A field for each param; `read()` returns {params: those that differ}. */
export function clonedParams(params) {
  const fields = Object.entries(params).map(([name, before], index) => {
    const input = h("input", { type: "text", id: `param-${index}`, autocomplete: "off", spellcheck: "false", oninput: () => input.classList.toggle("changed", input.value !== typed(before)) });
    input.value = typed(before);
    return { name, before, input };
  });
  const rows = fields.map(({ name, input }) => [h("label", { for: input.id }, name), input]);
  const node = h("fieldset", { class: "bare" }, h("legend", { class: "legend" }, "Params"), h("div", { class: "params-grid" }, rows));
  return { node, read: () => ({ params: changedOf(fields) }) };
}

function changedOf(fields) {
  const changed = {};
  for (const { name, before, input } of fields) {
    input.removeAttribute("aria-invalid");
    if (input.value === typed(before)) continue;
    try {
      // A param may have any name: as a plain property "__proto__" would be lost.
      Object.defineProperty(changed, name, { value: read(name, input.value, before), enumerable: true });
    } catch (error) {
      input.setAttribute("aria-invalid", "true");
      input.focus();
      throw error;
    }
  }
  return changed;
}
