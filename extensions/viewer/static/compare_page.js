// Two runs: what differs in their configuration, and their curves over each other.

import { get } from "./api.js";
import { lineChart } from "./charts.js";
import { el, section } from "./dom.js";
import { runsQuery } from "./runs_page.js";
import { legendEntry } from "./stacked_bars.js";
import { dataTable } from "./table.js";
import { runLink } from "./router.js";

const RUN_COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4"];

export async function showCompare(page) {
  const answer = await get(`api/compare${runsQuery(page.route.query.getAll("runs"))}`, page.signal);
  const { runs } = answer;
  const figures = overlaid(runs, answer.charts).map((chart) => lineChart(chart, [], page.signal).figure);
  page.show(
    el("h1", {}, "Comparison"),
    el(
      "p",
      { class: "legend large" },
      runs.map((run, index) =>
        legendEntry(`var(${RUN_COLOURS[index % RUN_COLOURS.length]})`, el("a", { href: runLink(run) }, run)),
      ),
    ),
    section("What differs in the configuration", differenceTable(runs, answer.differences)),
    section(
      "Curves",
      el(
        "p",
        { class: "faint" },
        "The colour is the run; where a chart has several curves of a run, dashes tell them apart.",
      ),
      el("div", { class: "charts" }, figures),
    ),
  );
}

function differenceTable(runs, differences) {
  const columns = [
    { title: "key", cell: (row) => el("code", {}, row.key) },
    ...runs.map((run, index) => ({
      title: run,
      isWide: true,
      cell: (row) => el("code", {}, row.values[index]),
    })),
  ];
  return dataTable(columns, differences, { label: "differences", empty: "The configurations are the same." });
}

/** Each chart that any of the runs has, with the curves of all. */
function overlaid(runs, charts) {
  const known = new Map();
  runs.forEach((run, index) => {
    for (const chart of charts[run].charts ?? []) {
      const lines = chart.series.map((line, order) => ({
        name: `${run}: ${line.name}`,
        label: line.name,
        points: line.points,
        colour: RUN_COLOURS[index % RUN_COLOURS.length],
        dash: order,
      }));
      const before = known.get(chart.id) ?? { ...chart, lines: [] };
      known.set(chart.id, { ...before, lines: [...before.lines, ...lines] });
    }
  });
  return [...known.values()];
}
