// Two runs: their results, what differs in their configuration, and their curves over each other.

import { get } from "./api.js";
import { lineChart } from "./charts.js";
import { el, replace, section } from "./dom.js";
import { NOT_RECORDED, formatCount, formatSeconds, formatShare } from "./format.js";
import { runsQuery } from "./runs_page.js";
import { legendEntry } from "./stacked_bars.js";
import { dataTable } from "./table.js";
import { runLink } from "./router.js";

const RUN_COLOURS = ["--line-1", "--line-2"];
const OPEN_CHARTS = new Set(["success", "reward"]); // the others are folded
const RESULTS = [
  ["state", (run) => run.state],
  ["held-out success at the start", (run) => formatShare(run.first)],
  ["held-out success at the end", (run) => formatShare(run.last)],
  ["steps", (run) => formatCount(run.step)],
  ["took", (run) => formatSeconds(run.seconds)],
  ["sampled tokens", (run) => formatCount(run.tokens)],
  ["note", (run) => run.note ?? NOT_RECORDED],
];

export async function showCompare(page) {
  const answer = await get(`api/compare${runsQuery(page.route.query.getAll("runs"))}`, page.signal);
  const { runs } = answer;
  const charts = overlaid(runs, answer.charts);
  const figure = (chart) => lineChart(chart, [], page.signal).figure;
  page.show(
    el("h1", {}, "Comparison"),
    el(
      "p",
      { class: "legend large" },
      runs.map((run, index) =>
        legendEntry(`var(${RUN_COLOURS[index % RUN_COLOURS.length]})`, el("a", { href: runLink(run) }, run)),
      ),
    ),
    resultTable(answer.results),
    section("What differs in the configuration", differenceTable(runs, answer.differences)),
    section(
      "Curves",
      el(
        "p",
        { class: "faint" },
        "The colour is the run; where a chart has several curves of a run, dashes tell them apart.",
      ),
      el("div", { class: "charts" }, charts.filter((chart) => OPEN_CHARTS.has(chart.id)).map(figure)),
      foldedCharts(
        charts.filter((chart) => !OPEN_CHARTS.has(chart.id)),
        figure,
      ),
    ),
  );
}

function resultTable(results) {
  const columns = [
    { title: "", cell: ([name]) => name },
    ...results.map((run) => ({ title: run.run, isNumber: true, cell: ([, valueOf]) => valueOf(run) })),
  ];
  const shown = RESULTS.filter(([name]) => name !== "note" || results.some((run) => run.note));
  return dataTable(columns, shown, { label: "results" });
}

/** Charts that are drawn when they are asked for. */
function foldedCharts(charts, figure) {
  const place = el("div", { class: "charts" });
  const draw = () => place.childElementCount === 0 && replace(place, charts.map(figure));
  const title = el("summary", {}, `${charts.length} further charts`);
  return el("details", { class: "further", listen: { toggle: draw } }, title, place);
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
