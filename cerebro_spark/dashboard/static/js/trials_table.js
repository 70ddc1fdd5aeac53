// The table of trials: sorted, filtered, a page at a time; what is selected here stands out everywhere.

import { h, meter, pill, reconcile, setAttr, setText, emptyState, choice } from "./dom.js";
import { filterOf, valueOf } from "./filter.js";
import { count, metric as metricText, param, plural } from "./format.js";
import { swatchColour } from "./highlight.js";
import { links } from "./router.js";
import { compareValues, sortHeader } from "./sorting.js";
import { TrialMenu } from "./trial_actions.js";

const PAGE = 50;
const STATES = [["", "All"], ["running", "Running"], ["finished", "Finished"], ["stopped", "Stopped"], ["failed", "Failed"]];

export class TrialsCard {
  constructor(store, commands) {
    Object.assign(this, { store, commands, page: 0, state: "", text: "", order: { key: "best", down: false } });
    this.allBox = h("input", { type: "checkbox", "aria-label": "Select all trials that are listed", onchange: () => this.selectAll(this.allBox.checked) });
    this.heads = h("tr");
    this.body = h("tbody");
    this.table = h("table", {}, h("caption", { class: "unseen" }, "Trials of this run"), h("thead", {}, this.heads), this.body);
    this.search = h("input", { type: "search", placeholder: "Filter, such as lr<0.01 status=failed", "aria-label": "Filter trials", oninput: () => this.filter("text", this.search.value) });
    const states = choice("State", STATES, "", (state) => this.filter("state", state));
    const head = h("div", { class: "card-head" }, h("h2", {}, "Trials"), h("div", { class: "trials-tools" }, states, this.search));
    this.frame = h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Trials, a table" }, this.table);
    this.none = h("div");
    this.menu = new TrialMenu(store, commands);
    this.node = h("section", { class: "card wide trials", id: "part-trials", tabindex: "-1", "aria-label": "Trials" }, head, this.frame, this.none, this.makeFoot(), this.menu.node);
    this.ends = [store.on(["trials", "selection", "run"], () => this.update(this.inUse()))];
    this.update();
  }

  makeFoot() {
    this.said = h("span", { role: "status" });
    this.back = h("button", { type: "button", class: "button small", onclick: () => this.turn(-1) }, "Previous");
    this.next = h("button", { type: "button", class: "button small", onclick: () => this.turn(1) }, "Next");
    this.place = h("span");
    this.foot = h("div", { class: "card-foot" }, this.said, h("div", { class: "pager" }, this.back, this.place, this.next));
    return this.foot;
  }

  filter(name, value) {
    this[name] = value;
    this.page = 0;
    this.update();
  }

  turn(step) {
    this.page += step;
    this.update();
    this.frame.scrollIntoView({ block: "nearest" });
  }

  close() {
    this.ends.forEach((end) => end());
  }

  selectAll(on) {
    this.store.select(this.listed.map((trial) => trial.id), on);
  }

  // -- what is listed

  columns() {
    const { objective, summary } = this.store;
    const down = objective?.mode === "max";
    const params = (summary?.params ?? []).map((name) => ({ key: `param ${name}`, text: name, name, number: this.isNumber(name) }));
    return [
      { key: "id", text: "Trial" },
      { key: "status", text: "State" },
      { key: "epoch", text: "Epochs" },
      { key: "best", text: objective?.metric ? `Best ${objective.metric}` : "Best", number: true, down },
      { key: "last", text: "Last", number: true, down },
      ...params,
    ];
  }

  isNumber(name) {
    const first = this.store.trials.values().next().value;
    return typeof first?.params[name] === "number";
  }

  sortValue(trial, key) {
    const metric = this.store.objective?.metric;
    if (key === "best") return trial.best_value;
    if (key === "last") return trial.metrics?.[metric];
    if (key.startsWith("param ")) return plainValue(trial.params[key.slice(6)]);
    return valueOf(trial, key);
  }

  list() {
    const test = filterOf(this.text);
    const kept = this.store.ranked().filter((trial) => (!this.state || trial.status === this.state) && test(trial));
    const { key, down } = this.order;
    // Best first is the order in which they come, with those that failed at the end.
    if (key === "best" && down === (this.store.objective?.mode === "max")) return kept;
    return kept.sort((one, other) => compareValues(this.sortValue(one, key), this.sortValue(other, key), down));
  }

  // -- what is shown

  /** Whether somebody points into the table, is in it with the keyboard or has a menu open: then no row may slip away. */
  inUse() {
    const focused = document.activeElement;
    return this.menu.isOpen || this.body.matches(":hover") || (this.body.contains(focused) && focused.matches(":focus-visible"));
  }

  /** The trials of the page that is shown; `hold` keeps those that were there, in the order that they had. */
  onPage(hold) {
    const wanted = this.listed.slice(this.page * PAGE, (this.page + 1) * PAGE);
    if (!hold || this.onShow?.length !== wanted.length) return wanted;
    const listed = new Set(this.listed.map((trial) => trial.id));
    const same = this.onShow.every(({ id }) => listed.has(id));
    return same ? this.onShow.map(({ id }) => this.store.trials.get(id)) : wanted;
  }

  update(hold = false) {
    const { trials, parts, objective, selection } = this.store;
    if (!this.touched) this.order.down = objective?.mode === "max";
    this.listed = this.list();
    const pages = Math.max(1, Math.ceil(this.listed.length / PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const shown = this.onPage(hold);
    this.onShow = shown;
    this.showHeads();
    reconcile(this.body, shown, (trial) => `${trial.id} ${this.headKey}`, (trial) => this.rowOf(trial.id));
    this.menu.update();
    const chosen = this.listed.filter((trial) => selection.has(trial.id)).length;
    this.allBox.checked = chosen > 0 && chosen === this.listed.length;
    this.allBox.indeterminate = chosen > 0 && chosen < this.listed.length;
    this.frame.hidden = !shown.length;
    this.showNone(trials.size, parts.trials);
    setText(this.said, this.words(trials.size, chosen));
    setText(this.place, `Page ${this.page + 1} of ${pages}`);
    this.back.parentNode.hidden = pages < 2;
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page === pages - 1;
  }

  words(all, chosen) {
    const shown = this.listed.length === all ? plural(all, "trial") : `${count(this.listed.length)} of ${plural(all, "trial")}`;
    return chosen ? `${shown}, ${count(chosen)} selected` : shown;
  }

  showNone(all, part) {
    const state = this.listed.length ? "" : part.problem ? "problem" : !part.loaded ? "loading" : all ? "filtered" : "none";
    if (this.noneState === state) return;
    this.noneState = state;
    const states = {
      "": [],
      problem: [emptyState("The trials cannot be loaded", part.problem?.message)],
      loading: [emptyState("Loading the trials", "")],
      filtered: [emptyState("No trial matches", "Words must all be found; conditions look like lr<0.01 or status=failed.", h("button", { type: "button", class: "button", onclick: () => this.clear() }, "Clear the filter"))],
      none: [emptyState("No trials yet", "They appear as soon as the search asks for work.")],
    };
    this.none.replaceChildren(...states[state]);
  }

  clear() {
    this.search.value = "";
    this.text = "";
    this.node.querySelector(".tabs .tab").click();
    this.search.focus();
  }

  showHeads() {
    const columns = this.columns();
    const key = JSON.stringify(columns);
    if (key !== this.headKey) {
      this.headKey = key;
      const sort = () => {
        this.touched = true;
        this.update();
      };
      const act = this.commands.allowed ? h("th", { scope: "col" }, h("span", { class: "unseen" }, "Commands")) : null;
      this.headNodes = columns.map((column) => sortHeader(column, this.order, sort));
      this.heads.replaceChildren(h("th", { class: "pick", scope: "col" }, this.allBox), ...this.headNodes, ...(act ? [act] : []));
      this.shownColumns = columns;
    }
    this.headNodes.forEach((node) => node.update());
  }

  rowOf(id) {
    const box = h("input", { type: "checkbox", "aria-label": `Select ${id}`, onchange: () => this.store.toggle(id) });
    const swatch = h("span", { class: "swatch" });
    const mark = h("span", { class: "best-mark", hidden: true }, "★", h("span", { class: "unseen" }, " best"));
    const name = h("th", { scope: "row" }, h("span", { class: "name" }, swatch, h("a", { href: links.trial(this.store.run, id) }, id), mark));
    const state = pill("running");
    const bar = meter(0);
    const epochs = h("span");
    const best = h("td", { class: "number" });
    const last = h("td", { class: "number muted" });
    const params = this.shownColumns.filter((column) => column.name !== undefined).map((column) => ({ column, cell: h("td", { class: column.number ? "number value" : "value" }) }));
    const act = this.commands.allowed ? this.menu.buttonOf(id) : null;
    const node = h("tr", {}, h("td", { class: "pick" }, box), name, h("td", {}, state), h("td", {}, h("div", { class: "epochs" }, bar, epochs)), best, last, params.map(({ cell }) => cell), act && h("td", { class: "act" }, act));
    node.update = (trial) => {
      const chosen = this.store.selection.has(id);
      box.checked = chosen;
      node.classList.toggle("chosen", chosen);
      swatch.style.setProperty("--swatch", swatchColour(this.store, id));
      mark.hidden = this.store.summary?.best?.trial !== id;
      state.update(trial.status);
      state.title = trial.error ?? "";
      bar.update(trial.until ? trial.last / trial.until : 0, { finished: "done", failed: "failed" }[trial.status]);
      setText(epochs, `${trial.last} / ${trial.until}`);
      setText(best, metricText(trial.best_value));
      setText(last, metricText(trial.metrics?.[this.store.objective?.metric]));
      for (const { column, cell } of params) {
        setText(cell, param(trial.params[column.name]));
        setAttr(cell, "title", cell.textContent.length > 20 ? cell.textContent : null);
      }
      act?.update();
    };
    return node;
  }
}

function plainValue(value) {
  return value === null || typeof value !== "object" ? value : JSON.stringify(value);
}
