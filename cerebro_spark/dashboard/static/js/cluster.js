// The cluster: workers, their hosts, what they hold and do, and since when.

import { h, emptyState, meter, pill, reconcile, setAttr, setText } from "./dom.js";
import { bytes, count, duration, percent, plural } from "./format.js";
import { links } from "./router.js";

const MOST_HELD = 6;

export class ClusterCard {
  constructor(store, commands) {
    this.store = store;
    this.commands = commands;
    this.body = h("tbody");
    const names = ["Worker", "Host", "State", "Does now", "Since", "Holds", "Units", "Busy", "Losses"];
    const numbers = new Set(["Since", "Units", "Losses"]);
    const act = commands.allowed ? [h("th", { scope: "col" }, h("span", { class: "unseen" }, "Commands"))] : [];
    const heads = names.map((name) => h("th", { scope: "col", class: numbers.has(name) ? "number" : null }, name));
    this.table = h("table", {}, h("caption", { class: "unseen" }, "Workers"), h("thead", {}, h("tr", {}, heads, act)), this.body);
    this.frame = h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Workers, a table" }, this.table);
    this.none = h("div");
    this.said = h("span");
    this.partitions = h("tbody");
    const add = commands.allowed ? h("button", { type: "button", class: "button small", onclick: () => commands.open("add_workers") }, "Add workers…") : null;
    this.add = add;
    const head = h("div", { class: "card-head" }, h("h2", {}, "Cluster"), h("div", { class: "card-tools" }, this.said, add));
    this.node = h("section", { class: "card wide cluster", id: "part-cluster", tabindex: "-1", "aria-label": "Cluster" }, head, this.frame, this.none, this.makePartitions());
    this.ends = [store.on(["workers", "run"], () => this.update())];
    this.timer = setInterval(() => this.update(), 1000);
    this.update();
  }

  makePartitions() {
    const heads = ["Partition", "Rows", "Size", "Held by"].map((text, i) => h("th", { scope: "col", class: i === 1 || i === 2 ? "number" : null }, text));
    const table = h("table", {}, h("caption", { class: "unseen" }, "Partitions"), h("thead", {}, h("tr", {}, heads)), this.partitions);
    this.summaryOf = h("summary", {}, "Partitions");
    this.details = h("details", { class: "chart-data", ontoggle: () => this.update() }, this.summaryOf, h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Partitions, a table" }, table));
    return h("div", { class: "card-body" }, this.details);
  }

  close() {
    clearInterval(this.timer);
    this.ends.forEach((end) => end());
  }

  update() {
    const { workers, over } = this.store;
    const { rows } = workers;
    const nothing = rows.length ? null : workers.problem ? ["The workers cannot be loaded", workers.problem.message] : workers.loaded ? ["No worker has come yet", "They appear here as soon as they join."] : ["Loading the workers", ""];
    this.frame.hidden = Boolean(nothing);
    this.details.hidden = !workers.partitions.length;
    const key = JSON.stringify(nothing);
    if (key !== this.noneKey) this.none.replaceChildren(...(nothing ? [emptyState(...nothing)] : []));
    this.noneKey = key;
    if (this.add) this.add.hidden = over;
    reconcile(this.body, rows, (worker) => worker.id, (worker) => this.rowOf(worker.id));
    const hosts = new Set(rows.filter((worker) => worker.up).map((worker) => worker.host));
    setText(this.said, rows.length ? `${plural(rows.filter((worker) => worker.up).length, "worker")} on ${plural(hosts.size, "host")}, ${percent(this.store.summary?.utilisation)} busy` : "");
    this.said.className = "note muted small";
    setText(this.summaryOf, plural(workers.partitions.length, "partition"));
    if (this.details.open) reconcile(this.partitions, workers.partitions, (one) => one.id, (one) => this.partitionRow(one));
  }

  rowOf(id) {
    const cells = Object.fromEntries(["host", "doing", "holds"].map((name) => [name, h("td", { class: name === "host" ? "value" : null })]));
    const numbers = Object.fromEntries(["since", "units", "losses"].map((name) => [name, h("td", { class: "number" })]));
    const state = pill("idle");
    const bar = meter(0);
    const share = h("span");
    const busy = h("td", {}, h("div", { class: "epochs" }, bar, share));
    let worker = null;
    const remove = this.commands.allowed ? h("button", { type: "button", class: "button small quiet", "aria-label": `Remove ${id}`, onclick: () => this.commands.open("remove_worker", { worker }) }, "Remove…") : null;
    const node = h("tr", {}, h("th", { scope: "row" }, id), cells.host, h("td", {}, state), cells.doing, numbers.since, cells.holds, numbers.units, busy, numbers.losses, remove && h("td", { class: "act" }, remove));
    node.update = (now) => {
      worker = now;
      setText(cells.host, now.host || "–");
      state.update(...stateOf(now));
      this.showDoing(cells.doing, now);
      setText(numbers.since, this.sinceOf(now));
      setText(cells.holds, held(now.loaded));
      setAttr(cells.holds, "title", now.loaded.length > MOST_HELD ? now.loaded.join(", ") : null);
      setText(numbers.units, count(now.units));
      bar.update(now.utilisation);
      setText(share, percent(now.utilisation));
      setText(numbers.losses, count(now.deaths));
      setAttr(numbers.losses, "title", now.last_loss);
      if (remove) remove.hidden = !now.up || this.store.over;
    };
    return node;
  }

  showDoing(cell, worker) {
    const { unit } = worker;
    const key = unit ? `${unit.trial} ${unit.epoch} ${unit.partition} ${unit.kind} ${worker.together}` : worker.activity;
    if (cell.shownKey === key) return;
    cell.shownKey = key;
    if (!unit || !worker.up) {
      cell.replaceChildren(worker.up ? worker.activity : "–");
      return;
    }
    const more = worker.together > 1 ? ` and ${plural(worker.together - 1, "more trial")}` : "";
    const verb = unit.kind === "train" ? "trains" : "evaluates";
    cell.replaceChildren(`${verb} `, h("a", { href: links.trial(this.store.run, unit.trial) }, unit.trial), `${more}, epoch ${unit.epoch}, on ${unit.partition}`);
  }

  sinceOf(worker) {
    if (typeof worker.since !== "number") return "–";
    if (this.store.over) return "–";
    if (worker.since_clock) return duration(Math.max(0, Date.now() / 1000 - worker.since_clock));
    return duration(Math.max(0, (this.store.summary?.now ?? 0) - worker.since));
  }

  partitionRow(partition) {
    const holders = h("td");
    const node = h("tr", {}, h("th", { scope: "row" }, partition.id, partition.split === "train" ? "" : h("span", { class: "muted" }, ` ${partition.split}`)), h("td", { class: "number" }, count(partition.rows)), h("td", { class: "number" }, bytes(partition.bytes)), holders);
    node.update = () => {
      const names = this.store.workers.rows.filter((worker) => worker.up && worker.loaded.includes(partition.id)).map((worker) => worker.id);
      setText(holders, names.join(", ") || "nobody");
    };
    return node;
  }
}

function stateOf(worker) {
  if (!worker.up) return ["lost", "gone"];
  if (worker.unit) return ["running", "busy"];
  return worker.loading.length ? ["waiting", "loading"] : ["idle", "idle"];
}

function held(names) {
  if (!names.length) return "–";
  return names.length > MOST_HELD ? `${names.slice(0, MOST_HELD).join(", ")} and ${names.length - MOST_HELD} more` : names.join(", ");
}
