// The colours of trials and of charts, for the theme that is shown now.

const LIGHT = [
  "#2f58d6", "#d9580d", "#16865a", "#b8327a", "#7a4fd0", "#0c7f9e", "#a06a00", "#c0392b", "#4d7c0f", "#64708a",
  "#7d9bf0", "#f2a15f", "#5cc29a", "#e07fb4", "#b096ea", "#56b6d0", "#d3a640", "#e68477", "#93b84f", "#a3adbf",
];
const DARK = [
  "#86a8ff", "#ff9a5c", "#4fcf98", "#f07ab8", "#b79bff", "#4cc3e0", "#e0b04a", "#ff8a7a", "#a3d15c", "#a9b4c6",
  "#4d70d8", "#c4652a", "#239068", "#b84a88", "#8360d6", "#1f8ca8", "#a67c1c", "#c4554a", "#6d9630", "#6f7b90",
];
const SCALE_LIGHT = ["#b9c6dd", "#93b3dc", "#6a9bd6", "#4580c8", "#2d63b3", "#1f4793", "#142c66"];
const SCALE_DARK = ["#34435c", "#3d5a86", "#4873b0", "#5a8ed6", "#7dabee", "#a6c8fb", "#d6e6ff"];

const dark = matchMedia("(prefers-color-scheme: dark)");
const changes = new EventTarget();
const roles = new Map();

/** Whether dark colours are shown. */
export function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : dark.matches;
}

/** Call `act` when the theme changes; returns what ends that. */
export function onTheme(act) {
  changes.addEventListener("change", act);
  return () => changes.removeEventListener("change", act);
}

/** Tell everybody who draws that the theme is another one. */
export function themeChanged() {
  roles.clear();
  changes.dispatchEvent(new Event("change"));
}
dark.addEventListener("change", themeChanged);

/** The colour of a role in colours.css, as charts need it. */
export function role(name) {
  if (!roles.has(name)) {
    const probe = document.createElement("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    roles.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return roles.get(name);
}

/** The colour of the trial with this number, the same in every chart. */
export function trialColour(index) {
  const palette = isDark() ? DARK : LIGHT;
  return palette[((index ?? 0) + palette.length) % palette.length];
}

/** The same for a style: the browser takes the one of the theme, also when that changes. */
export function trialStyle(index) {
  const place = ((index ?? 0) + LIGHT.length) % LIGHT.length;
  return `light-dark(${LIGHT[place]}, ${DARK[place]})`;
}

/** Colours from worst to best. */
export function scale() {
  return isDark() ? SCALE_DARK : SCALE_LIGHT;
}
