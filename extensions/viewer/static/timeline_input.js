// Pointer and keys on the timeline.

import { el, replace } from "./dom.js";
import { formatNumber, formatPercent, formatSeconds, plural } from "./format.js";
import { chosenBar } from "./timeline_bars.js";
import { LABELS_WIDTH } from "./timeline_layout.js";
import { atATime } from "./timeline_loads.js";
import { panned, zoomed } from "./timeline_span.js";

const WHEEL_ZOOM = 0.0015;
const CLICK_ZOOM = 0.2;
const DRAG_LEAST = 4;
const LINE_REACH = 3;

export function watchTimeline(view) {
  const { canvas } = view.elements;
  const drag = { from: null, isPan: false, span: null };
  canvas.addEventListener("wheel", (event) => byWheel(view, event), { passive: false });
  canvas.addEventListener("pointerdown", (event) => beginDrag(view, drag, event));
  canvas.addEventListener("pointermove", (event) =>
    drag.from === null ? pointAt(view, event) : continueDrag(view, drag, event),
  );
  canvas.addEventListener("pointerup", (event) => endDrag(view, drag, event));
  canvas.addEventListener("keydown", (event) => byKey(view, event));
}

function timeAt(view, x) {
  const { began, ended } = view.span;
  return began + ((x - LABELS_WIDTH) / (view.area.width - LABELS_WIDTH)) * (ended - began);
}

function byWheel(view, event) {
  event.preventDefault();
  const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
  if (isSideways || event.shiftKey) {
    view.moveTo(panned(view.span, (isSideways ? event.deltaX : event.deltaY) / view.area.width));
  } else {
    view.moveTo(zoomed(view.span, Math.exp(event.deltaY * WHEEL_ZOOM), timeAt(view, event.offsetX)));
  }
}

function beginDrag(view, drag, event) {
  if (event.button === 0 && event.offsetX >= LABELS_WIDTH) {
    Object.assign(drag, { from: event.offsetX, isPan: event.shiftKey, span: view.span });
    view.elements.canvas.setPointerCapture(event.pointerId);
  }
}

function continueDrag(view, drag, event) {
  const by = event.offsetX - drag.from;
  if (drag.isPan) {
    view.moveTo(panned(drag.span, -by / (view.area.width - LABELS_WIDTH)));
    return;
  }
  view.draw();
  const { context, layout } = view.area;
  context.fillStyle = "rgb(128 140 160 / 25%)";
  context.fillRect(drag.from, 0, by, layout.height);
}

function endDrag(view, drag, event) {
  const { from, isPan } = drag;
  drag.from = null;
  if (from === null || isPan) {
    return;
  }
  if (Math.abs(event.offsetX - from) < DRAG_LEAST) {
    const bar = thingAt(view.bars, event);
    view.draw();
    if (bar !== undefined) {
      view.open(bar);
    } else if (thingAt(view.columns, event) !== undefined) {
      view.moveTo(zoomed(view.span, CLICK_ZOOM, timeAt(view, event.offsetX)));
    }
    return;
  }
  const times = [timeAt(view, from), timeAt(view, event.offsetX)].sort((a, b) => a - b);
  view.moveTo({ began: times[0], ended: times[1] });
}

function thingAt(things, { offsetX, offsetY }) {
  const isUnder = ({ x, y, width, height }) =>
    offsetX >= x - 1 && offsetX <= x + width + 1 && offsetY >= y && offsetY <= y + height + 1;
  return things.findLast(isUnder);
}

function pointAt(view, event) {
  const bar = thingAt(view.bars, event);
  const slice = thingAt(view.slices, event);
  const column = thingAt(view.columns, event);
  const near = view.data.published.find(
    ({ at }) => Math.abs(view.area.xOf(at) - event.offsetX) <= LINE_REACH,
  );
  view.elements.canvas.style.cursor = bar ? "pointer" : column ? "zoom-in" : "crosshair";
  const text = bar
    ? describeRequest(view, bar)
    : slice
      ? describeSlice(view, slice)
      : near
        ? describePublication(view, near)
        : column
          ? describeColumn(view, column)
          : null;
  replace(
    view.elements.line,
    text ?? el("span", { class: "number" }, `${afterBegin(view, timeAt(view, event.offsetX))}`),
  );
}

function afterBegin(view, at) {
  return `${(at - view.data.run_began).toFixed(3)} s after the run began`;
}

function describeRequest(view, { slice, process, row }) {
  const single = slice.v.length === 1;
  const versions = slice.v.map(([version, begin, end]) =>
    single ? `v${version}` : `v${version} ${formatPercent(end - begin)}`,
  );
  const weights = versions.length === 0 ? "no tokens" : `weights ${versions.join(" → ")}`;
  const took = formatSeconds(slice.e - slice.t);
  const what = `request of rollout ${slice.id} on ${process}, row ${row + 1}: ${slice.status}`;
  return `${what}, ${plural(slice.tokens, "token")} in ${took}, ${weights}; began ${afterBegin(view, slice.t)}`;
}

function describeColumn(view, { at, seconds, versions, process }) {
  const all = atATime(versions);
  const shares = versions.map(([version, requests]) => `v${version} ${formatPercent(requests / all)}`);
  const when = `${afterBegin(view, at)}, ${formatSeconds(seconds)} long`;
  return `${process}: ${formatNumber(all)} requests at a time, weights ${shares.join(", ")}; ${when}`;
}

function describeSlice(view, { slice, process }) {
  const told = Object.entries(slice.f ?? {}).map(
    ([name, value]) => `${name} ${typeof value === "number" ? formatNumber(value) : JSON.stringify(value)}`,
  );
  const rest = told.length === 0 ? "" : `; ${told.join(", ")}`;
  return `${process}: ${slice.n}, ${formatSeconds(slice.e - slice.t)}${rest}; began ${afterBegin(view, slice.t)}`;
}

function describePublication(view, { version, at, seconds, paused_s: paused }) {
  const pause = paused === null ? "" : `, for which the servers paused ${formatSeconds(paused)}`;
  return `v${version} went live ${afterBegin(view, at)}; it took ${formatSeconds(seconds)}${pause}`;
}

function byKey(view, event) {
  const zooms = { "+": 0.5, "=": 0.5, "-": 2, "−": 2 };
  if (event.key in zooms) {
    view.moveTo(zoomed(view.span, zooms[event.key]));
  } else if (event.key.startsWith("Arrow")) {
    event.preventDefault();
    selectBar(view, event.key);
  } else if (event.key === "Enter") {
    const bar = chosenBar(view);
    if (bar !== undefined) {
      view.open(bar);
    }
  }
}

/** Chooses the next bar of a row, or the nearest one of another row. */
function selectBar(view, key) {
  const chosen = chosenBar(view);
  const next = chosen === undefined ? view.bars[0] : neighbourBar(view.bars, chosen, key);
  if (next !== undefined) {
    view.selected = next.slice;
    view.draw();
    replace(view.elements.line, describeRequest(view, next));
  }
}

function neighbourBar(bars, chosen, key) {
  if (key === "ArrowRight" || key === "ArrowLeft") {
    const row = bars.filter((bar) => bar.y === chosen.y);
    return row[row.indexOf(chosen) + (key === "ArrowRight" ? 1 : -1)];
  }
  const rows = [...new Set(bars.map((bar) => bar.y))].sort((a, b) => a - b);
  const y = rows[rows.indexOf(chosen.y) + (key === "ArrowDown" ? 1 : -1)];
  const distance = (bar) => Math.abs(bar.x - chosen.x);
  return bars.filter((bar) => bar.y === y).sort((a, b) => distance(a) - distance(b))[0];
}
