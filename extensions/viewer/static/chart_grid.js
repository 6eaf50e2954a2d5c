// All charts of a run. They grow as points come; a metric that is new has them all drawn again.

import { apiPath, get } from "./api.js";
import { lineChart } from "./charts.js";
import { el, replace } from "./dom.js";
import { lagHistogram } from "./lag_histogram.js";

const HISTOGRAM_EVERY_MS = 10000;

export function chartGrid(page, first) {
  const grid = {
    page,
    element: el("div", {}),
    marks: [],
    charts: new Map(),
    histogram: el("div", { class: "histogram" }),
    askedAt: performance.now(),
  };
  grid.marksLine = el("ul", { class: "marks" });
  drawGrid(grid, first);
  return { element: grid.element, add: (points) => addToGrid(grid, points) };
}

function drawGrid(grid, drawn) {
  grid.drawing?.abort();
  grid.drawing = new AbortController();
  grid.marks.splice(0, grid.marks.length, ...drawn.marks);
  grid.charts = new Map();
  const main = drawn.charts.filter((chart) => !chart.is_further).map((chart) => figureOf(grid, chart));
  const further = drawn.charts.filter((chart) => chart.is_further);
  replace(grid.histogram, lagHistogram(drawn.lag_histogram));
  replace(
    grid.element,
    el("div", { class: "charts" }, main, grid.histogram),
    grid.marksLine,
    furtherCharts(grid, further),
  );
  showMarks(grid);
}

function figureOf(grid, chart) {
  const signal = AbortSignal.any([grid.page.signal, grid.drawing.signal]);
  const drawn = lineChart({ ...chart, lines: chart.series }, grid.marks, signal);
  grid.charts.set(chart.id, drawn);
  return drawn.figure;
}

/** Charts of metrics that few look at; they are drawn when they are asked for. */
function furtherCharts(grid, charts) {
  if (charts.length === 0) {
    return null;
  }
  charts.forEach((chart) => grid.charts.set(chart.id, null));
  const place = el("div", { class: "charts" });
  const details = el(
    "details",
    { class: "further", open: grid.isOpen },
    el("summary", {}, `${charts.length} further metrics`),
    place,
  );
  const draw = () => {
    grid.isOpen = details.open;
    if (details.open && place.childElementCount === 0) {
      replace(
        place,
        charts.map((chart) => figureOf(grid, chart)),
      );
    }
  };
  details.addEventListener("toggle", draw);
  return details;
}

function showMarks(grid) {
  replace(
    grid.marksLine,
    grid.marks.map((mark) => el("li", { class: mark.kind }, mark.text)),
  );
}

async function addToGrid(grid, points) {
  const hasNew = Object.entries(points.charts ?? {}).some(([id, series]) => isUnknown(grid, id, series));
  const isDue = performance.now() - grid.askedAt > HISTOGRAM_EVERY_MS;
  grid.marks.push(...(points.marks ?? []));
  if (hasNew || isDue) {
    grid.askedAt = performance.now();
    const drawn = await get(apiPath(grid.page.route.run, "charts"), grid.page.signal).catch(() => null);
    if (drawn !== null && hasNew) {
      drawGrid(grid, drawn);
      return;
    }
    replace(grid.histogram, drawn === null ? [] : lagHistogram(drawn.lag_histogram));
  }
  showMarks(grid);
  grid.charts.forEach((chart, id) => chart?.add(points.charts?.[id] ?? {}));
}

function isUnknown(grid, id, series) {
  const chart = grid.charts.get(id);
  return (
    chart === undefined || (chart !== null && Object.keys(series).some((name) => !chart.names.has(name)))
  );
}
