// Line charts over weight versions, drawn by uPlot.

import uPlot from "./vendor/uPlot.esm.js";
import { lineColour, onSchemeChange, sheetColour } from "./colours.js";
import { chartLegend } from "./chart_legend.js";
import { el } from "./dom.js";
import { formatCount, formatNumber, formatSeconds, formatShare } from "./format.js";

const CHART_HEIGHT = 170;
const FEW_POINTS = 30;
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

/** A chart of {id, title, y, lines: [{name, points, colour, dash}]}, with a way to add points as they come. */
export function lineChart(chart, marks, signal) {
  const lines = chart.lines.map((line) => ({ ...line, points: new Map(line.points) }));
  const place = el("div", { class: "plot" });
  const legend = chartLegend(lines, valueFormat(chart.y), chart.x);
  const figure = el(
    "figure",
    { class: "chart", data: { chart: chart.id }, "aria-label": describeChart(chart) },
    el("figcaption", {}, chart.x === "versions" ? chart.title : `${chart.title}, over ${chart.x}`),
    place,
    legend.element,
  );
  const plot = new uPlot(plotOptions(chart, lines, marks, legend), alignedPoints(lines), place);
  const observer = new ResizeObserver(() => fitWidth(plot, place));
  observer.observe(place);
  signal.addEventListener("abort", () => {
    observer.disconnect();
    plot.destroy();
  });
  onSchemeChange(() => plot.redraw(), signal);
  legend.show(null);
  return {
    figure,
    names: new Set(lines.map((line) => line.name)),
    add: (points) => addPoints(plot, lines, legend, points),
  };
}

function valueFormat(y) {
  return { share: formatShare, seconds: formatSeconds }[y] ?? formatNumber;
}

function fitWidth(plot, place) {
  const width = Math.floor(place.clientWidth);
  if (width > 0 && width !== plot.width) {
    plot.setSize({ width, height: CHART_HEIGHT });
  }
}

function describeChart(chart) {
  const lasts = chart.lines
    .filter((line) => line.points.length > 0)
    .map((line) => `${line.name} last ${valueFormat(chart.y)(line.points.at(-1)[1])}`);
  const over = chart.x === "versions" ? "weight versions" : chart.x;
  return `${chart.title} over ${over}; ${lasts.join(", ") || "no points"}`;
}

/** All lines on the versions of any of them: [versions, values of line 1, ...], null where a line has none. */
function alignedPoints(lines) {
  const versions = [...new Set(lines.flatMap((line) => [...line.points.keys()]))].sort((a, b) => a - b);
  return [versions, ...lines.map((line) => versions.map((version) => line.points.get(version) ?? null))];
}

function addPoints(plot, lines, legend, points) {
  for (const line of lines) {
    for (const [version, value] of points[line.name] ?? []) {
      line.points.set(version, value);
    }
  }
  plot.setData(alignedPoints(lines));
  legend.show(null);
}

function plotOptions(chart, lines, marks, legend) {
  const text = valueFormat(chart.y);
  return {
    width: 360,
    height: CHART_HEIGHT,
    scales: {
      x: { time: false, range: versionRange },
      y: { range: chart.y === "share" ? shareRange : valueRange },
    },
    axes: [plotAxis((values) => values.map(wholeVersion), 24), plotAxis((values) => values.map(text), 50)],
    series: [{}, ...lines.map(plotLine)],
    legend: { show: false },
    cursor: { sync: { key: chart.x }, y: false, points: { size: 5 } },
    hooks: {
      drawAxes: [(plot) => drawMarks(plot, chart.x === "versions" ? marks : [])],
      setCursor: [(plot) => legend.show(pointedVersion(plot))],
    },
  };
}

/** The version under the pointer, or null where it is elsewhere. */
function pointedVersion(plot) {
  const { left } = plot.cursor;
  return left < 0 ? null : plot.posToVal(left, "x");
}

function wholeVersion(version) {
  return Number.isInteger(version) ? formatCount(version) : "";
}

function versionRange(_, low, high) {
  return low === high ? [(low ?? 0) - 1, (high ?? 0) + 1] : [low, high];
}

function shareRange(_, low, high) {
  return [0, Math.max(high ?? 1, 1)];
}

function valueRange(_, low, high) {
  if (low === null || high === null) {
    return [0, 1];
  }
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 && low < high * 0.6 ? 0 : low - room, high + room];
}

function plotAxis(values, size) {
  return {
    size,
    font: "11px system-ui, sans-serif",
    stroke: () => sheetColour("--faint"),
    grid: { stroke: () => sheetColour("--grid"), width: 1 },
    ticks: { show: false },
    values: (_, splits) => values(splits),
  };
}

function plotLine(line, index) {
  return {
    stroke: () => sheetColour(lineColour(line, index)),
    width: 1.5,
    dash: DASHES[(line.dash ?? 0) % DASHES.length],
    spanGaps: true,
    points: { show: line.points.size < FEW_POINTS, size: 5, fill: () => sheetColour("--panel") },
  };
}

function drawMarks(plot, marks) {
  const context = plot.ctx;
  const { left, top, width, height } = plot.bbox;
  context.save();
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.version, "x", true));
    if (x >= left && x <= left + width) {
      context.strokeStyle = sheetColour(mark.kind === "alarm" ? "--warning" : "--faint");
      context.lineWidth = devicePixelRatio;
      context.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
    }
  }
  context.restore();
}
