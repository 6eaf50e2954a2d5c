// Draws merged requests: for each server a column for each bin, as high as it had requests at a time, by version.

import { VERSION_COLOURS, versionIndex } from "./colours.js";

/** The columns of all servers' merged requests, in pixels. All servers have one scale. */
export function loadColumns({ layout, span, xOf }) {
  const places = layout.placed.filter(({ track }) => track.kind === "load");
  const most = Math.max(...places.map(({ track }) => mostAtATime(track)));
  return places.flatMap(({ track, top, height }) => {
    const shown = track.bins.filter(([at]) => at + track.width >= span.began && at <= span.ended);
    return shown.map(([at, versions]) => ({
      x: xOf(at),
      width: xOf(at + track.width) - xOf(at),
      y: top,
      height,
      scale: height / most,
      at,
      seconds: track.width,
      versions,
      process: track.process,
    }));
  });
}

export function mostAtATime(track) {
  return Math.max(0, ...track.bins.map(([, versions]) => atATime(versions)));
}

export function atATime(versions) {
  return versions.reduce((sum, [, requests]) => sum + requests, 0);
}

export function drawLoads({ context }, columns) {
  for (const { x, width, y, height, scale, versions } of columns) {
    let bottom = y + height;
    for (const [version, requests] of versions) {
      const high = requests * scale;
      context.fillStyle = VERSION_COLOURS[versionIndex(version)];
      context.fillRect(x, bottom - high, Math.max(width, 0.5), high);
      bottom -= high;
    }
  }
}
