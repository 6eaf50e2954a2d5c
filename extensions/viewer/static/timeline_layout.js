// Where the rows of the timeline stand.

export const LABELS_WIDTH = 104;
export const HEAD_HEIGHT = 22;
export const AXIS_HEIGHT = 22;
const BETWEEN = 10;
const SERVERS_HEIGHT = 420;
const LOAD_ROOM = [22, 120]; // least and most height of a server's merged requests
const PROCESS_ROW = 17;

/** The tracks with their tops and the height of their rows, and the height of all. */
export function timelineLayout(tracks) {
  const serverRows = tracks
    .filter((track) => track.kind === "server")
    .reduce((sum, track) => sum + track.rows.length, 0);
  const serverRow = Math.min(Math.max(Math.floor(SERVERS_HEIGHT / Math.max(serverRows, 1)), 4), 16);
  const loads = tracks.filter((track) => track.kind === "load").length;
  const loadRow = Math.max(Math.min(SERVERS_HEIGHT / loads, LOAD_ROOM[1]), LOAD_ROOM[0]);
  let top = HEAD_HEIGHT;
  const placed = tracks.map((track) => {
    const rowHeight = { server: serverRow, load: loadRow }[track.kind] ?? PROCESS_ROW;
    const depth = track.kind === "process" ? deepest(track) + 1 : 1;
    const place = { track, top, rowHeight, height: rowHeight * Math.max(track.rows.length * depth, 1) };
    top += place.height + BETWEEN;
    return { ...place, depth };
  });
  return { placed, height: top + AXIS_HEIGHT };
}

function deepest(track) {
  return track.rows.flat().reduce((most, slice) => Math.max(most, slice.depth ?? 0), 0);
}
