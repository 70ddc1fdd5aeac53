// Params against the metric, all at once: an axis a param, a line a trial, darker for better ones.
//
// Made of plain lines: Plotly's own parallel coordinates compile code as they run, which this page's policy forbids.

import { isDark, role, scale } from "./colours.js";
import { metric as metricText, plural } from "./format.js";
import { colourOf, tellTrial } from "./highlight.js";
import { axis, label, layout } from "./plot.js";
import { Space, varying } from "./spaces.js";

const MOST_AXES = 8;
const MOST_COLOURED = 12;

/** What Chart.draw wants. */
export function drawParallel(store, hidden) {
  const trials = [...store.trials.values()];
  const metric = store.objective?.metric ?? null;
  const all = varying(trials, store.summary?.params ?? []);
  const params = all.filter((space) => !hidden.has(space.name)).slice(0, MOST_AXES);
  if (!params.length) return { empty: all.length ? ["No param is chosen", "Choose at least one above."] : ["Nothing to compare yet", "Axes appear as soon as trials differ in a param."] };
  const values = new Space(metric, trials.map((trial) => trial.best_value));
  const spaces = metric && values.numeric ? [...params, values] : params;
  const valueOf = (trial, space) => (space === values ? trial.best_value : trial.params[space.name]);
  const chosen = store.selection.size > 0;
  const front = chosen ? trials.filter((trial) => store.selection.has(trial.id)) : [];
  const groups = grouped(trials.filter((trial) => !store.selection.has(trial.id)), values, store.objective?.mode, chosen);
  const traces = groups.map(({ members, colour, opacity }) => lines(members, spaces, valueOf, { color: colour, width: 1.2 }, opacity));
  const single = front.length <= MOST_COLOURED;
  const ahead = single ? front.map((trial) => lines([trial], spaces, valueOf, { color: colourOf(store, trial.id), width: 2.6 }, 1)) : [lines(front, spaces, valueOf, { color: role("accent"), width: 1.8 }, 0.8)];
  const left = all.length - params.length;
  return { traces: [...traces, ...ahead], layout: form(spaces), words: words(trials, params, values.numeric ? metric : null, left) };
}

function words(trials, params, metric, left) {
  const names = params.map((space) => space.name).join(", ");
  const more = left ? ` ${plural(left, "param")} more can be shown.` : "";
  return `${plural(trials.length, "trial")} across ${names}${metric ? ` and ${metric}; ${isDark() ? "brighter" : "darker"} lines are better` : ""}.${more}`;
}

function grouped(trials, values, mode, dimmed) {
  if (dimmed) return [{ members: trials, colour: role("faint"), opacity: trials.length > 200 ? 0.3 : 0.6 }];
  const colours = scale();
  const groups = [{ members: [], colour: role("faint"), opacity: 0.5 }, ...colours.map((colour) => ({ members: [], colour, opacity: trials.length > 300 ? 0.55 : 0.85 }))];
  for (const trial of trials) {
    const place = values.numeric ? values.place(trial.best_value) : null;
    const good = place === null ? null : mode === "max" ? place : 1 - place;
    groups[good === null ? 0 : 1 + Math.min(colours.length - 1, Math.floor(good * colours.length))].members.push(trial);
  }
  return groups.filter(({ members }) => members.length);
}

function lines(members, spaces, valueOf, line, opacity) {
  const [x, y, owners] = [[], [], []];
  for (const trial of members) {
    spaces.forEach((space, i) => {
      x.push(i);
      y.push(space.place(valueOf(trial, space)));
      owners.push(trial.id);
    });
    x.push(null);
    y.push(null);
    owners.push(trial.id);
  }
  return { type: "scatter", mode: "lines", x, y, owners, line, opacity, hoverinfo: "none", connectgaps: false };
}

function form(spaces) {
  const last = spaces.length - 1;
  const annotations = spaces.flatMap((space, i) => space.marks.map(([place, text]) => mark(i, place, text)));
  const shapes = spaces.map((_, i) => ({ type: "line", x0: i, x1: i, y0: 0, y1: 1, line: { color: role("line-strong"), width: 1 } }));
  const ticktext = spaces.map((space) => label(space.name ?? "", spaces.length > 5 ? 11 : 16));
  return layout({
    margin: { l: 26, r: 34, t: 28, b: 14 },
    xaxis: axis({ range: [-0.25, last + 0.35], tickvals: spaces.map((_, i) => i), ticktext, side: "top", showgrid: false, showline: false, tickfont: { size: 12, color: role("text") }, fixedrange: true, automargin: false }),
    yaxis: axis({ range: [-0.05, 1.06], visible: false, fixedrange: true }),
    annotations,
    shapes,
    dragmode: false,
    uirevision: "parallel",
  });
}

function mark(x, y, text) {
  return { x, y, text: label(text, 12), showarrow: false, xanchor: "left", xshift: 4, font: { size: 10.5, color: role("muted") }, bgcolor: role("surface"), borderpad: 1, opacity: 0.9 };
}

/** Tell of the trial whose line is under the pointer. */
export function tellParallel(store, point, event) {
  const id = point.data.owners[point.pointNumber];
  const trial = store.trials.get(id);
  const best = store.objective ? [[store.objective.metric, metricText(trial?.best_value)]] : [];
  tellTrial(store, id, event, best);
}
