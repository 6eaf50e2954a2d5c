// Draws the bars of requests, and what each process did.

import { VERSION_COLOURS, sheetColour, versionIndex } from "./colours.js";
import { plainText } from "./text.js";
import { processColour } from "./timeline_colours.js";
import { LABELS_WIDTH } from "./timeline_layout.js";

const NAME_ROOM = 7;

/** The bars of requests that can be seen, in pixels. */
export function serverBars({ layout, span, xOf }) {
  const bars = [];
  for (const { track, top, rowHeight } of layout.placed) {
    if (track.kind !== "server") {
      continue;
    }
    track.rows.forEach((row, index) => {
      const y = top + index * rowHeight;
      for (const slice of row) {
        if (slice.e >= span.began && slice.t <= span.ended) {
          bars.push(barOf(slice, track.process, index, xOf, y, rowHeight));
        }
      }
    });
  }
  return bars;
}

/** The bar of the request that is chosen, if it is shown. */
export function chosenBar({ bars, selected }) {
  return bars.find(({ slice }) => slice.r === selected?.r && slice.t === selected.t);
}

function barOf(slice, process, row, xOf, y, rowHeight) {
  const x = xOf(slice.t);
  const width = Math.max(xOf(slice.e) - x, 1);
  const versions = slice.v.map(([version]) => version);
  return { r: slice.r, x, width, y, height: rowHeight - 1, versions, slice, process, row };
}

/** Fills all parts of one colour after another, which is quicker than to change colours. */
export function fillBars({ context }, bars) {
  const paths = VERSION_COLOURS.map(() => []);
  const unsampled = [];
  const waiting = [];
  for (const bar of bars) {
    if (bar.slice.v.length === 0) {
      unsampled.push([bar.x, bar.y, bar.width, bar.height]);
    } else {
      waiting.push([bar.x, bar.y, bar.slice.v[0][1] * bar.width, bar.height]);
    }
    for (const [version, begin, end] of bar.slice.v) {
      paths[versionIndex(version)].push([
        bar.x + begin * bar.width,
        bar.y,
        (end - begin) * bar.width,
        bar.height,
      ]);
    }
  }
  const colours = [...VERSION_COLOURS, sheetColour("--faint"), sheetColour("--waiting")];
  [...paths, unsampled, waiting].forEach((parts, index) => {
    context.fillStyle = colours[index];
    parts.forEach((part) => context.fillRect(...part));
  });
}

export function drawProcesses(area) {
  const { layout, span, xOf } = area;
  const slices = [];
  for (const { track, top, rowHeight, depth } of layout.placed.filter(
    (place) => place.track.kind === "process",
  )) {
    track.rows.forEach((row, index) => {
      for (const slice of row.filter((one) => one.e >= span.began && one.t <= span.ended)) {
        const x = xOf(slice.t);
        const y = top + (index * depth + (slice.depth ?? 0)) * rowHeight;
        const drawn = {
          x,
          y,
          width: Math.max(xOf(slice.e) - x, 1),
          height: rowHeight - 1,
          slice,
          process: track.process,
        };
        drawProcessSlice(area, drawn);
        slices.push(drawn);
      }
    });
  }
  return slices;
}

function drawProcessSlice({ context, width }, { x, y, width: long, height, slice }) {
  context.fillStyle = processColour(slice.n);
  context.fillRect(x, y, long > 2 ? long - 0.5 : long, height);
  const left = Math.max(x, LABELS_WIDTH);
  const room = Math.min(x + long, width) - left - 6;
  if (room > slice.n.length * NAME_ROOM) {
    context.fillStyle = sheetColour("--on-grey");
    context.textAlign = "left";
    context.fillText(plainText(slice.n), left + 4, y + height / 2 + 0.5);
  }
}
