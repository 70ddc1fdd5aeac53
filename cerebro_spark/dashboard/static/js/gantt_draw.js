// Draws a Gantt chart on a canvas: a lane a worker, a colour a trial, stripes for trials that ran together.

import { role } from "./colours.js";
import { stopwatch } from "./format.js";

const AXIS = 22;
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

const rowOf = (lanes) => (lanes <= 16 ? 28 : lanes <= 40 ? 20 : 13);

/** How high a chart of so many workers is, in pixels. */
export const heightOf = (lanes) => AXIS + Math.max(1, lanes) * rowOf(lanes) + 4;

/** The place of everything: lanes below each other, time from left to right. */
export class Frame {
  constructor(width, lanes, window, names) {
    this.width = width;
    this.lanes = lanes;
    this.left = names;
    this.row = rowOf(lanes);
    this.height = heightOf(lanes);
    this.from = window.from;
    this.to = Math.max(window.to, window.from + 0.001);
  }

  x(time) {
    return this.left + ((time - this.from) / (this.to - this.from)) * (this.width - this.left - 8);
  }

  y(lane) {
    return AXIS + lane * this.row;
  }

  time(x) {
    return this.from + ((x - this.left) / (this.width - this.left - 8)) * (this.to - this.from);
  }

  lane(y) {
    const lane = Math.floor((y - AXIS) / this.row);
    return lane >= 0 && lane < this.lanes ? lane : null;
  }
}

/** Draw all of it. `scene` is {data, now, colour(trial), chosen (a Set), hops}. */
export function drawGantt(context, frame, scene) {
  context.clearRect(0, 0, frame.width, frame.height);
  context.textBaseline = "middle";
  drawAxis(context, frame);
  drawNames(context, frame, scene.data.lanes);
  context.save();
  context.beginPath();
  context.rect(frame.left, 0, frame.width - frame.left, frame.height);
  context.clip();
  drawAbsences(context, frame, scene);
  if (scene.data.bins) drawBins(context, frame, scene);
  else drawBars(context, frame, scene);
  drawRunning(context, frame, scene);
  drawHops(context, frame, scene);
  drawFailures(context, frame, scene);
  context.restore();
}

function drawAxis(context, frame) {
  const span = frame.to - frame.from;
  const wanted = Math.max(2, (frame.width - frame.left) / 90);
  const step = STEPS.find((one) => span / one <= wanted) ?? Math.ceil(span / wanted / 86400) * 86400;
  context.font = font(11);
  context.textAlign = "center";
  for (let time = Math.ceil(frame.from / step) * step; time <= frame.to; time += step) {
    const x = Math.round(frame.x(time)) + 0.5;
    context.fillStyle = role("line");
    context.fillRect(x, AXIS - 4, 1, frame.height - AXIS + 4);
    context.fillStyle = role("muted");
    const text = step < 1 ? `${time.toFixed(1)} s` : stopwatch(time + 1e-6);
    if (x > frame.left + 12 && x < frame.width - 22) context.fillText(text, x, 9);
  }
}

function drawNames(context, frame, lanes) {
  const every = frame.row < 14 ? 2 : 1;
  context.font = font(frame.row < 14 ? 10 : 12);
  context.textAlign = "left";
  lanes.forEach((worker, lane) => {
    context.fillStyle = lane % 2 ? role("surface") : role("sunken");
    context.fillRect(frame.left, frame.y(lane), frame.width - frame.left, frame.row);
    if (lane % every) return;
    context.fillStyle = role("text");
    context.fillText(cut(context, worker.id, frame.left - 10), 0, frame.y(lane) + frame.row / 2);
  });
}

/** A text as far as there is room for it. */
function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

function drawAbsences(context, frame, { data, now }) {
  for (const { worker, start, end } of data.absences) {
    const [x, width] = span(frame, start, end ?? now);
    hatch(context, x, frame.y(worker) + 2, width, frame.row - 4, role("line-strong"));
  }
}

/** Fill a box with slanted lines. */
export function hatch(context, x, y, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.globalAlpha = 0.55;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 6) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

function span(frame, start, end) {
  const x = Math.max(frame.left, frame.x(start));
  return [x, Math.max(0, Math.min(frame.width, frame.x(end)) - x)];
}

function drawBins(context, frame, { data, colour, chosen }) {
  const { step, busy, main, from_at: from, trial } = data.bins;
  busy.forEach((shares, lane) => {
    shares.forEach((share, i) => {
      if (share <= 0) return;
      const name = main[lane][i] >= 0 ? trial[main[lane][i]] : null;
      const [x, width] = span(frame, from + i * step, from + (i + 1) * step);
      context.globalAlpha = (chosen.size && !chosen.has(name) ? 0.18 : 0.85) * Math.max(0.2, share);
      context.fillStyle = name === null ? role("faint") : colour(name);
      const high = (frame.row - 6) * Math.max(0.15, share);
      context.fillRect(x, frame.y(lane) + frame.row - 3 - high, Math.max(0.5, width), high);
    });
  });
  context.globalAlpha = 1;
}

function drawBars(context, frame, scene) {
  const { data } = scene;
  const gap = data.bars.length > 2500 ? 0 : 1;
  for (const bar of data.bars) {
    if (bar.end < frame.from || bar.start > frame.to) continue;
    drawBar(context, frame, scene, bar, bar.end, gap);
  }
}

function drawBar(context, frame, { colour, chosen }, bar, end, gap) {
  const [x, wide] = span(frame, bar.start, end);
  const width = Math.max(0.6, wide - gap);
  const top = frame.y(bar.lane) + 3;
  const high = (frame.row - 6) / bar.units.length;
  bar.units.forEach((unit, stripe) => {
    context.globalAlpha = (chosen.size && !chosen.has(unit.trial) ? 0.16 : 1) * (bar.train ? 1 : 0.5);
    context.fillStyle = colour(unit.trial);
    context.fillRect(x, top + stripe * high, width, bar.units.length > 1 ? Math.max(0.5, high - (high > 3 ? 0.75 : 0)) : high);
  });
  context.globalAlpha = 1;
  drawLabel(context, frame, bar, x, width, chosen);
}

function drawLabel(context, frame, bar, x, width, chosen) {
  if (width < 22 || frame.row < 18) return;
  const shown = bar.units.some((unit) => !chosen.size || chosen.has(unit.trial));
  const text = bar.units.length === 1 ? bar.units[0].trial : `${bar.units.length} trials`;
  context.font = font(10.5, 600);
  if (!shown || context.measureText(text).width > width - 6) return;
  const [middle, y] = [x + width / 2, frame.y(bar.lane) + frame.row / 2 + 0.5];
  context.textAlign = "center";
  if (bar.units.length > 1) {
    // Stripes of many colours: the number needs a ground of its own.
    const half = context.measureText(text).width / 2 + 4;
    context.fillStyle = role("surface");
    context.fillRect(middle - half, y - 7.5, 2 * half, 14);
    context.fillStyle = role("text");
  } else context.fillStyle = role("surface");
  context.fillText(text, middle, y);
}

function drawRunning(context, frame, scene) {
  for (const bar of scene.data.running) {
    drawBar(context, frame, scene, bar, scene.now, 0);
    const [x, width] = span(frame, bar.start, scene.now);
    hatch(context, x, frame.y(bar.lane) + 3, width, frame.row - 6, role("surface"));
  }
}

function drawHops(context, frame, { hops, colour }) {
  context.lineWidth = 1.5;
  for (const { trial, from, left, to, came } of hops) {
    const [x0, x1] = [frame.x(left), frame.x(came)];
    if (x1 < frame.left || x0 > frame.width) continue;
    const [y0, y1] = [frame.y(from) + frame.row / 2, frame.y(to) + frame.row / 2];
    context.strokeStyle = colour(trial);
    context.beginPath();
    context.moveTo(x0, y0);
    context.bezierCurveTo(x0 + 6, y0, x1 - 6, y1, x1, y1);
    context.stroke();
    context.fillStyle = role("surface");
    context.beginPath();
    context.arc(x1, y1, 3, 0, 7);
    context.fill();
    context.stroke();
  }
}

function drawFailures(context, frame, { data }) {
  for (const { worker, at, kind } of data.failures) {
    const x = frame.x(at);
    if (x < frame.left || x > frame.width) continue;
    drawCross(context, x, frame.y(worker) + frame.row / 2, kind === "worker" ? 6 : 4.5);
  }
}

/** A red cross with a rim, for what failed. */
export function drawCross(context, x, y, size) {
  for (const [colour, width] of [[role("surface"), 5], [role("bad"), 2.25]]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y - size);
    context.lineTo(x - size, y + size);
    context.stroke();
  }
  context.lineCap = "butt";
}

function font(size, weight = 400) {
  return `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
}
