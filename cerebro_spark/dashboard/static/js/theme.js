// The button that changes between the system's colours, light and dark.

import { themeChanged } from "./colours.js";
import { svg } from "./dom.js";

const ORDER = ["", "light", "dark"];
const WORDS = { "": "as the system", light: "light", dark: "dark" };
const PATHS = {
  "": "M4 5h16v11H4zM9 20h6M12 16v4",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M19 5l-1.4 1.4M6.4 17.6 5 19",
  dark: "M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z",
};

function chosen() {
  return document.documentElement.dataset.theme ?? "";
}

function choose(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  try {
    if (theme) localStorage.setItem("cerebro-theme", theme);
    else localStorage.removeItem("cerebro-theme");
  } catch {
    // Without storage the choice lasts as long as the page.
  }
  themeChanged();
}

/** Make a button of the page the one that changes colours. */
export function themeButton(button) {
  const show = () => {
    const theme = chosen();
    button.setAttribute("aria-label", `Colours: ${WORDS[theme]}`);
    button.title = `Colours: ${WORDS[theme]}`;
    const lines = svg("path", { d: PATHS[theme], fill: "none", stroke: "currentColor", "stroke-width": "1.7", "stroke-linecap": "round", "stroke-linejoin": "round" });
    button.replaceChildren(svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, lines));
  };
  button.addEventListener("click", () => {
    choose(ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length]);
    show();
  });
  show();
}
