// Draws with Plotly, which comes from the installed package. It is large: pages show before it is there.

import { isDark, onTheme, role } from "./colours.js";
import { emptyState, h, setAttr, setText } from "./dom.js";
import { hideTip } from "./tip.js";

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset+autosize", showTips: false };
let loading = null;

/** The library, once it is there. */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "vendor/plotly.min.js", async: true });
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = () => {
      loading = null;
      reject(new Error("Charts cannot be drawn: the server has no plotly.min.js. Install the extra `dashboard`."));
    };
    document.head.append(script);
  });
  return loading;
}

/**
 * A text as Plotly shows it letter by letter. Plotly reads tags such as <b> and <a href>, and entities, in each label.
 */
export function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/[\r\n]+/g, " ").replace(/\$/g, "&#36;");
}

/** Cut a text that would not fit, then make it plain. */
export function label(text, most = 18) {
  const letters = [...String(text)];
  return plain(letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : letters.join(""));
}

/** An axis in the page's colours. */
export function axis(more = {}) {
  const line = role("line");
  return {
    gridcolor: line,
    zeroline: false,
    linecolor: line,
    tickcolor: line,
    ticks: "",
    automargin: true,
    tickfont: { size: 11, color: role("muted") },
    title: { standoff: 8, font: { size: 12, color: role("muted") }, text: "" },
    ...more,
  };
}

/** What an axis of epochs needs so that it never shows halves of them. */
export function epochTicks(most) {
  return { tickmode: "linear", tick0: 0, dtick: Math.max(1, Math.ceil(most / 10)), ...(most < 2 ? { range: [0.5, 1.5] } : {}) };
}

/** A layout in the page's colours. */
export function layout(more = {}) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 48, r: 12, t: 8, b: 40 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: role("text") },
    showlegend: false,
    hovermode: "closest",
    hoverdistance: 24,
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    uirevision: isDark() ? "dark" : "light",
    ...more,
  };
}

/**
 * A chart with what it says in words, and its data as a table for who wants or needs that.
 *
 * `draw()` returns {traces, layout, words, empty}; `table()` returns {head, rows}. It is drawn when it can be seen, and
 * not more often than every `every` milliseconds, less often if that takes long. It is busy until its first picture.
 */
export class Chart {
  constructor({ name, draw, table = null, every = 400, size = "", onHover = null, onClick = null }) {
    Object.assign(this, { name, draw, table, every, onHover, onClick, stale: true, seen: null, last: 0, took: 0 });
    this.plot = h("div", { class: "plot", role: "img", "aria-label": name });
    this.holder = h("div", { class: `chart ${size}` }, this.plot);
    this.words = h("p", { class: "chart-text" });
    this.node = h("figure", { "aria-label": name, "aria-busy": "true" }, this.holder, this.words, table && this.makeTable());
    this.watch = new IntersectionObserver(([entry]) => this.see(entry.isIntersecting), { rootMargin: "200px" });
    this.watch.observe(this.holder);
    this.endTheme = onTheme(() => this.update());
    this.holder.addEventListener("pointerleave", hideTip);
  }

  /** Say that what it shows has changed. */
  update() {
    this.stale = true;
    if (!this.seen || this.timer) return;
    // A chart that takes long is drawn more seldom: the page must stay at hand.
    const wait = Math.max(0, this.last + Math.max(this.every, 4 * this.took) - performance.now());
    this.timer = setTimeout(() => this.render(), wait);
    this.sayBusy();
  }

  sayBusy() {
    setAttr(this.node, "aria-busy", !this.painted && (this.seen === null || Boolean(this.timer)));
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.watch.disconnect();
    this.endTheme();
    if (this.drawn) globalThis.Plotly.purge(this.plot);
  }

  see(seen) {
    this.seen = seen;
    if (seen && this.stale) this.update();
    else this.sayBusy();
  }

  async render() {
    this.stale = false;
    try {
      await this.show(this.draw());
    } catch (error) {
      this.showEmpty(["This chart cannot be drawn", error.message]);
    }
    // Where nothing was drawn yet, the first picture need not wait.
    this.last = this.painted ? performance.now() : 0;
    this.timer = null;
    this.sayBusy();
    if (this.stale) this.update();
  }

  async show(shown) {
    const words = shown.words ?? "";
    setText(this.words, words);
    this.plot.setAttribute("aria-label", `${this.name}. ${words}`);
    // It keeps its place: what is below must not move away from under a pointer when the picture comes.
    if (this.details) this.details.classList.toggle("waiting", Boolean(shown.empty));
    if (this.details?.open && !shown.empty) this.fillTable();
    if (shown.empty) this.showEmpty(shown.empty);
    else await this.paint(shown);
  }

  async paint({ traces, layout: form }) {
    const library = await plotly();
    if (this.closed) return;
    this.empty?.remove();
    this.empty = null;
    this.plot.hidden = false;
    const began = performance.now();
    await library.react(this.plot, traces, form, CONFIG);
    this.took = performance.now() - began;
    this.painted = true;
    if (!this.drawn) this.listen();
  }

  listen() {
    this.drawn = true;
    this.plot.on("plotly_hover", ({ points, event }) => this.onHover?.(points[0], event));
    this.plot.on("plotly_unhover", hideTip);
    this.plot.on("plotly_click", ({ points }) => this.onClick?.(points[0]));
  }

  showEmpty([title, text]) {
    this.empty?.remove();
    this.empty = emptyState(title, text);
    this.plot.hidden = true;
    this.holder.append(this.empty);
  }

  makeTable() {
    this.frame = h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": `${this.name}, as a table` });
    this.details = h("details", { class: "chart-data", ontoggle: () => this.fillTable() }, h("summary", {}, "Show as a table"), this.frame);
    return this.details;
  }

  fillTable() {
    if (!this.details.open) return;
    const { head, rows } = this.table();
    this.frame.replaceChildren(
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, head.map((text, i) => h("th", { scope: "col", class: i ? "number" : null }, text)))),
        h("tbody", {}, rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row" }, first), rest.map((cell) => h("td", { class: "number" }, cell))))),
      ),
    );
  }
}
