// The legend of a chart: its lines, with their values under the pointer, or else their last ones.

import { lineColour } from "./colours.js";
import { el } from "./dom.js";
import { NOT_RECORDED, formatCount } from "./format.js";

/** x: what the chart is over, `versions` or a plural noun. */
export function chartLegend(lines, text, x) {
  const values = lines.map(() => el("b", {}));
  const at = el("span", { class: "at" });
  const entries = lines.map((line, index) =>
    el(
      "span",
      { class: "entry" },
      lineSample(line, index),
      el("span", {}, line.label ?? line.name),
      values[index],
    ),
  );
  const show = (version) => {
    let shown = null;
    lines.forEach((line, index) => {
      const point = pointBefore(line.points, version);
      shown = Math.max(shown ?? 0, point?.[0] ?? 0);
      values[index].textContent = point === null ? NOT_RECORDED : text(point[1]);
    });
    const place = x === "versions" ? `v${shown}` : `${formatCount(shown)} ${x}`;
    at.textContent = shown === null ? "" : `${version === null ? "last" : "at"} ${place}`;
  };
  return { element: el("p", { class: "legend" }, entries, at), show };
}

/** The last point up to a version, or the last of all. */
function pointBefore(points, version) {
  let found = null;
  for (const point of points) {
    if (version === null || point[0] <= version + 0.5) {
      found = found === null || point[0] >= found[0] ? point : found;
    }
  }
  return found;
}

function lineSample(line, index) {
  const sample = el("span", { class: `line-sample dash-${line.dash ?? 0}` });
  sample.style.borderColor = `var(${lineColour(line, index)})`;
  return sample;
}
