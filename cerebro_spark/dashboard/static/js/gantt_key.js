// What the marks of the Gantt chart mean, drawn as they are drawn there.

import { onTheme, role, trialColour } from "./colours.js";
import { h } from "./dom.js";
import { drawCross, hatch } from "./gantt_draw.js";

const WIDTH = 24;
const HEIGHT = 14;

const MARKS = [
  ["a unit, in its trial's colour", (context) => box(context, 0, HEIGHT, trialColour(0))],
  ["evaluation", (context) => box(context, 0, HEIGHT, trialColour(0), 0.5)],
  ["trials trained together", (context) => [0, 1, 2].forEach((i) => box(context, (i * HEIGHT) / 3, HEIGHT / 3 - 0.75, trialColour(i)))],
  ["running now", (context) => {
    box(context, 0, HEIGHT, trialColour(0));
    hatch(context, 0, 0, WIDTH, HEIGHT, role("surface"));
  }],
  ["worker away", (context) => hatch(context, 0, 0, WIDTH, HEIGHT, role("line-strong"))],
  ["failure", (context) => drawCross(context, WIDTH / 2, HEIGHT / 2, 4.5)],
  ["hop", (context) => hop(context)],
];

function box(context, y, height, colour, alpha = 1) {
  context.globalAlpha = alpha;
  context.fillStyle = colour;
  context.fillRect(0, y, WIDTH, height);
  context.globalAlpha = 1;
}

function hop(context) {
  context.strokeStyle = trialColour(0);
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(1, 2);
  context.bezierCurveTo(10, 2, 8, 11, 18, 11);
  context.stroke();
  context.beginPath();
  context.arc(19, 11, 2.4, 0, 7);
  context.stroke();
}

export function ganttKey() {
  const drawings = MARKS.map(([text, draw]) => {
    const canvas = h("canvas", { "aria-hidden": "true", width: WIDTH * 2, height: HEIGHT * 2 });
    const paint = () => {
      const context = canvas.getContext("2d");
      context.setTransform(2, 0, 0, 2, 0, 0);
      context.clearRect(0, 0, WIDTH, HEIGHT);
      draw(context);
    };
    return { paint, item: h("li", {}, canvas, text) };
  });
  const node = h("ul", { class: "gantt-key", "aria-label": "What the marks mean" }, drawings.map(({ item }) => item));
  const repaint = () => (node.isConnected ? drawings.forEach(({ paint }) => paint()) : end());
  const end = onTheme(repaint);
  requestAnimationFrame(repaint);
  return node;
}
