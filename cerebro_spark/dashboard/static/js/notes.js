// Answers and news at the edge of the page. A screen reader reads them out.

import { h } from "./dom.js";

const LASTS = 12_000;

/** Show a note: a title, what it says, and "done", "refused" or "". Refusals stay until they are closed. */
export function note(title, text, state = "") {
  const close = h("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => node.remove() }, "✕");
  const node = h("div", { class: "toast", data: { state } }, h("strong", {}, title), close, text && h("p", {}, text));
  document.getElementById("notes").append(node);
  if (state !== "refused") setTimeout(() => node.remove(), LASTS);
}
