// Draws the timeline on its canvas.

import { VERSION_COLOURS, sheetColour, versionIndex } from "./colours.js";
import { formatClock, formatNumber } from "./format.js";
import { plainText } from "./text.js";
import { chosenBar, drawProcesses, fillBars, serverBars } from "./timeline_bars.js";
import { AXIS_HEIGHT, HEAD_HEIGHT, LABELS_WIDTH, timelineLayout } from "./timeline_layout.js";
import { drawLoads, loadColumns, mostAtATime } from "./timeline_loads.js";
import { axisTicks } from "./timeline_span.js";

const FONT = "11px system-ui, sans-serif";
const LABEL_ROOM = 36;
const TICK_ROOM = 90;
const TICK_EDGE = 20;
const DENSE_LINES = 8;
const SQUARE = 9;

export function drawTimeline(view) {
  const { canvas } = view.elements;
  const layout = timelineLayout(view.data.tracks);
  const context = sizedContext(canvas, layout.height);
  const width = canvas.clientWidth;
  const scale = (width - LABELS_WIDTH) / (view.span.ended - view.span.began);
  const area = {
    ...view,
    context,
    layout,
    width,
    xOf: (at) => LABELS_WIDTH + (at - view.span.began) * scale,
  };
  context.save();
  context.beginPath();
  context.rect(LABELS_WIDTH, 0, width - LABELS_WIDTH, layout.height);
  context.clip();
  drawTravel(area);
  drawAxis(area);
  view.bars = serverBars(area);
  fillBars(area, view.bars);
  view.columns = loadColumns(area);
  drawLoads(area, view.columns);
  view.slices = drawProcesses(area);
  drawPublications(area);
  drawSelected({ ...area, bars: view.bars });
  context.restore();
  drawLabels(area);
  canvas.bars = view.bars.map(({ r, x, width: barWidth, y, height, versions }) => ({
    r,
    x,
    width: barWidth,
    y,
    height,
    versions,
  }));
  view.area = area;
}

/** A context in CSS pixels, on a canvas as fine as the screen. */
export function sizedContext(canvas, height) {
  const ratio = devicePixelRatio;
  canvas.style.height = `${height}px`;
  const wide = Math.round(canvas.clientWidth * ratio);
  const high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.clientWidth, height);
  context.font = FONT;
  context.textBaseline = "middle";
  return context;
}

function drawTravel({ context, data, layout, xOf }) {
  context.fillStyle = sheetColour("--travel");
  for (const { at, seconds } of data.published) {
    if (seconds !== null) {
      const left = xOf(at - seconds);
      context.fillRect(left, HEAD_HEIGHT, xOf(at) - left, layout.height - HEAD_HEIGHT - AXIS_HEIGHT);
    }
  }
}

function drawAxis({ context, data, span, layout, width, xOf }) {
  const { step, ticks } = axisTicks(span, data.run_began, Math.max((width - LABELS_WIDTH) / TICK_ROOM, 1));
  const y = layout.height - AXIS_HEIGHT / 2;
  context.textAlign = "center";
  context.strokeStyle = sheetColour("--grid");
  context.fillStyle = sheetColour("--faint");
  for (const tick of ticks) {
    const x = Math.round(xOf(data.run_began + tick)) + 0.5;
    context.beginPath();
    context.moveTo(x, HEAD_HEIGHT);
    context.lineTo(x, layout.height - AXIS_HEIGHT);
    context.stroke();
    if (x > LABELS_WIDTH + TICK_EDGE && x < width - TICK_EDGE) {
      context.fillText(tickText(tick, step), x, y);
    }
  }
}

function tickText(tick, step) {
  if (step >= 60 || tick >= 600) {
    return formatClock(tick);
  }
  return `${tick.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)))} s`;
}

function drawPublications({ context, data, layout, width, xOf }) {
  const areDense = width / data.published.length < DENSE_LINES;
  let freeFrom = 0;
  context.textAlign = "left";
  for (const { version, at } of data.published) {
    const x = Math.round(xOf(at));
    context.fillStyle = sheetColour(areDense ? "--rule" : "--ink");
    context.fillRect(x, HEAD_HEIGHT - 4, 1, layout.height - HEAD_HEIGHT - AXIS_HEIGHT + 4);
    if (x >= LABELS_WIDTH && x <= width && x > freeFrom) {
      drawVersionLabel(context, version, x, width);
      freeFrom = x + LABEL_ROOM;
    }
  }
}

/** A square in the version's colour and its number, above the line, or beside it at the edges. */
function drawVersionLabel(context, version, x, width) {
  const text = `v${version}`;
  const long = context.measureText(text).width + SQUARE + 4;
  const left = Math.min(Math.max(x - long / 2, LABELS_WIDTH), width - long);
  context.fillStyle = VERSION_COLOURS[versionIndex(version)];
  context.fillRect(left, 10 - SQUARE / 2, SQUARE, SQUARE);
  context.fillStyle = sheetColour("--ink");
  context.fillText(text, left + SQUARE + 4, 10.5);
}

function drawSelected(area) {
  const { context } = area;
  const bar = chosenBar(area);
  if (bar !== undefined) {
    context.strokeStyle = sheetColour("--ink");
    context.lineWidth = 1.5;
    context.strokeRect(bar.x - 1, bar.y - 1, bar.width + 2, bar.height + 2);
  }
}

function drawLabels({ context, layout }) {
  context.textAlign = "right";
  for (const { track, top, rowHeight, height } of layout.placed) {
    context.fillStyle = sheetColour("--ink");
    const y = track.kind === "process" ? top + rowHeight / 2 : top + 7;
    context.fillText(plainText(track.process), LABELS_WIDTH - 8, y, LABELS_WIDTH - 12);
    if (track.kind !== "process" && height > 26) {
      const most = track.kind === "load" ? formatNumber(mostAtATime(track)) : track.rows.length;
      context.fillStyle = sheetColour("--faint");
      context.fillText(`${most} at a time`, LABELS_WIDTH - 8, y + 14, LABELS_WIDTH - 12);
    }
  }
}
