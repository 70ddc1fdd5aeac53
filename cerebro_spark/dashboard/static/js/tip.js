// One tooltip for all charts. It shows text, never markup.

import { h } from "./dom.js";

let tip = null;

/** Show a tooltip near a place of the window: a title with a colour, and pairs of a name and a value. */
export function showTip(x, y, title, colour, pairs) {
  tip ??= document.body.appendChild(h("div", { class: "tip", role: "presentation" }));
  tip.replaceChildren(
    h("strong", {}, colour && h("span", { class: "swatch", vars: { "--swatch": colour } }), title),
    h("dl", {}, pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
  );
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth - 8 ? Math.max(8, x - 16 - width) : x + 16;
  const top = Math.min(Math.max(8, y + 12), innerHeight - height - 8);
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
}

export function hideTip() {
  if (tip) tip.hidden = true;
}
