// A narrow bar of the whole run: all publications, and the part that the timeline shows.

import { sheetColour, versionColour } from "./colours.js";
import { LABELS_WIDTH } from "./timeline_layout.js";
import { sizedContext } from "./timeline_draw.js";

const OVERVIEW_HEIGHT = 26;
const COLOURS_HEIGHT = 8;

export function drawOverview({ elements, data, span }) {
  const { overview } = elements;
  const context = sizedContext(overview, OVERVIEW_HEIGHT);
  const width = overview.clientWidth;
  const xOf = (at) =>
    LABELS_WIDTH +
    ((at - data.run_began) / Math.max(data.run_ended - data.run_began, 0.001)) * (width - LABELS_WIDTH);
  const top = (OVERVIEW_HEIGHT - COLOURS_HEIGHT) / 2;
  context.fillStyle = sheetColour("--faint");
  context.textAlign = "right";
  context.fillText("whole run", LABELS_WIDTH - 8, OVERVIEW_HEIGHT / 2);
  data.versions.forEach(([version, at], index) => {
    const end = data.versions[index + 1]?.[1] ?? data.run_ended;
    context.fillStyle = versionColour(version);
    context.fillRect(xOf(at), top, Math.max(xOf(end) - xOf(at) - 0.5, 0.5), COLOURS_HEIGHT);
  });
  drawWindow(context, Math.max(xOf(span.began), LABELS_WIDTH - 1), Math.min(xOf(span.ended), width - 1));
}

function drawWindow(context, left, right) {
  context.fillStyle = sheetColour("--window");
  context.fillRect(left, 1, Math.max(right - left, 3), OVERVIEW_HEIGHT - 2);
  context.strokeStyle = sheetColour("--ink");
  context.lineWidth = 1;
  context.strokeRect(left + 0.5, 1.5, Math.max(right - left, 3), OVERVIEW_HEIGHT - 3);
}

/** A press or a drag moves the middle of what is shown there. */
export function watchOverview(view) {
  const { overview } = view.elements;
  const centre = (event) => {
    const { data, span } = view;
    const share = (event.offsetX - LABELS_WIDTH) / (overview.clientWidth - LABELS_WIDTH);
    const at = data.run_began + share * (data.run_ended - data.run_began);
    const half = (span.ended - span.began) / 2;
    view.moveTo({ began: at - half, ended: at + half });
  };
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    centre(event);
  });
  overview.addEventListener("pointermove", (event) => {
    if (event.buttons === 1) {
      centre(event);
    }
  });
}
