// Colours of weight versions, and of values.

export const VERSION_COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"];
export const REASON_COLOURS = [
  "#9aa3ad",
  "#cf8a3d",
  "#b2554d",
  "#7d6bb3",
  "#5f93b5",
  "#98964a",
  "#6b6f76",
  "#c27ba0",
];
const LAG_COLOURS = ["#9ccbb8", "#5fa8a0", "#3d7f93", "#3a5685", "#3d2f66", "#2b1740"];
export const TRAINED_COLOUR = "#2f8270";
const LINE_COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];

/** The name of a line's colour in the style sheet: its own, or by its place among the lines. */
export function lineColour(line, index) {
  return line.colour ?? LINE_COLOURS[index % LINE_COLOURS.length];
}

export function versionIndex(version) {
  return version % VERSION_COLOURS.length;
}

export function versionColour(version) {
  return VERSION_COLOURS[versionIndex(version)];
}

export function lagColour(lag) {
  return LAG_COLOURS[Math.min(Math.max(lag, 0), LAG_COLOURS.length - 1)];
}

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const sheetColours = new Map();
darkScheme.addEventListener("change", () => sheetColours.clear());

/** A colour of the style sheet, such as "--ink", as it is now (light or dark). */
export function sheetColour(name) {
  if (!sheetColours.has(name)) {
    sheetColours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return sheetColours.get(name);
}

/** Calls `draw` when the machine changes between light and dark, until `signal` ends it. */
export function onSchemeChange(draw, signal) {
  darkScheme.addEventListener("change", draw, { signal });
}
