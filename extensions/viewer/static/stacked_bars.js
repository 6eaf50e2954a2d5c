// Stacked bars, one for each weight version or range of them. What is under the pointer is said in a line.

import { el, replace, svg } from "./dom.js";
import { formatCount } from "./format.js";

const BAR_HEIGHT = 100;
const MOST_LABELS = 7;

/** Bars of [{label, parts: [[name, amount], ...]}]; with `asShares` each is as high as the others. */
export function stackedBars({ id, title, bins, colourOf, asShares = false, unit }) {
  const line = el("p", { class: "readout", "aria-live": "off" }, "\u00a0");
  const picture = svg("svg", {
    viewBox: `0 0 ${Math.max(bins.length, 1)} ${BAR_HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${title}: ${bins.length} bars`,
  });
  const highest = Math.max(1, ...bins.map(sumOfParts));
  picture.append(
    ...bins.flatMap((bin, index) => barParts(bin, index, asShares ? sumOfParts(bin) : highest, colourOf)),
  );
  picture.addEventListener("pointermove", (event) => replace(line, describeBin(bins, event, picture, unit)));
  picture.addEventListener("pointerleave", () => replace(line, "\u00a0"));
  const height = asShares ? "1" : formatCount(highest);
  const scale = el("div", { class: "bar-scale" }, el("span", {}, height), el("span", {}, "0"));
  const area = el(
    "div",
    { class: "bar-area" },
    scale,
    el("div", { class: "bars" }, picture, barLabels(bins)),
  );
  return el(
    "figure",
    { class: "chart", data: { chart: id } },
    el("figcaption", {}, title),
    area,
    line,
    barLegend(bins, colourOf),
  );
}

function sumOfParts(bin) {
  return bin.parts.reduce((sum, [, amount]) => sum + amount, 0);
}

function barParts(bin, index, whole, colourOf) {
  let below = 0;
  return bin.parts.map(([name, amount]) => {
    const height = whole > 0 ? (amount / whole) * BAR_HEIGHT : 0;
    below += height;
    const bar = svg("rect", { x: index + 0.04, width: 0.92, y: BAR_HEIGHT - below, height });
    bar.style.fill = colourOf(name);
    return bar;
  });
}

function describeBin(bins, event, picture, unit) {
  const box = picture.getBoundingClientRect();
  const bin = bins[Math.floor(((event.clientX - box.left) / box.width) * bins.length)];
  if (bin === undefined) {
    return "\u00a0";
  }
  const whole = sumOfParts(bin);
  const parts = bin.parts
    .filter(([, amount]) => amount > 0)
    .map(([name, amount]) => `${name} ${formatCount(amount)}`);
  return `${bin.label}: ${formatCount(whole)} ${unit}; ${parts.join(", ")}`;
}

function barLabels(bins) {
  const every = Math.ceil(bins.length / MOST_LABELS);
  const labels = bins.flatMap((bin, index) => (index % every === 0 ? [barLabel(bin, index, bins.length)] : []));
  return el("div", { class: "bar-labels" }, labels);
}

function barLabel(bin, index, count) {
  const label = el("span", {}, bin.label);
  label.style.left = `${(100 * (index + 0.5)) / count}%`;
  return label;
}

function barLegend(bins, colourOf) {
  const names = [
    ...new Set(bins.flatMap((bin) => bin.parts.filter(([, amount]) => amount > 0).map(([name]) => name))),
  ];
  return el(
    "p",
    { class: "legend" },
    names.map((name) => legendEntry(colourOf(name), name)),
  );
}

/** A small square of a colour and what it means. */
export function legendEntry(colour, text) {
  const square = el("span", { class: "square" });
  square.style.background = colour;
  return el("span", { class: "entry" }, square, el("span", {}, text));
}
