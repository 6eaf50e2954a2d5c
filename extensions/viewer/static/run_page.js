// One run: what was learnt, what bounds it, its state in numbers, its curves.

import { apiPath, get } from "./api.js";
import { chartGrid } from "./chart_grid.js";
import { alertBox, el, facts, replace, section } from "./dom.js";
import {
  formatAs,
  formatCount,
  formatPercent,
  formatShare,
  formatTime,
  plural,
  versionText,
} from "./format.js";
import { openRun } from "./live.js";
import { dataTable } from "./table.js";
import { runLink } from "./router.js";

export async function showRun(page) {
  const run = await openRun(page);
  const charts = chartGrid(page, await get(apiPath(page.route.run, "charts"), page.signal));
  const summary = el("div", { class: "summary" });
  const below = el("div", {});
  page.show(summary, charts.element, below);
  showSummary(summary, below, run);
  return { onRun: (newer) => showSummary(summary, below, newer), onPoints: charts.add };
}

function showSummary(summary, below, run) {
  replace(summary, headline(run), indexProgress(run.indexed), tiles(run.tiles));
  replace(below, evaluationsTable(run.evaluations), aboutRun(run));
}

function headline(run) {
  const { finding, sentence } = run.bottleneck;
  const rest = sentence.startsWith(`${finding}:`) ? sentence.slice(finding.length + 1) : sentence;
  const groups = el("a", { href: runLink(run.name, "groups") }, "what became of the groups");
  return el(
    "section",
    { class: "headline" },
    run.problem ? alertBox(run.problem) : null,
    el("p", { class: "learnt", data: { headline: "" } }, run.headline),
    el(
      "p",
      { class: "sentence" },
      el("strong", { class: "finding", data: { finding } }, finding),
      rest === "" || rest === finding ? null : [": ", rest.trim()],
    ),
    run.drops ? el("p", { class: "drops" }, "Groups dropped: ", run.drops, " · ", groups) : null,
  );
}

/** How far the viewer has read the rollouts; nothing once it has read all. */
export function indexProgress(indexed) {
  if (!indexed || indexed.is_complete) {
    return null;
  }
  const share = indexed.of_bytes > 0 ? indexed.bytes / indexed.of_bytes : 0;
  return el(
    "p",
    { class: "note", role: "status" },
    `The viewer still reads the rollouts: ${plural(indexed.rollouts, "rollout")}, ${formatPercent(share)} of the bytes.`,
  );
}

function tiles(all) {
  const tile = ({ name, value, format, note }) =>
    el(
      "div",
      { class: "tile" },
      el("dt", {}, name),
      el("dd", {}, formatAs(format, value)),
      note ? el("dd", { class: "faint" }, note) : null,
    );
  return el("dl", { class: "tiles" }, all.map(tile));
}

function evaluationsTable(evaluations) {
  const columns = [
    { title: "set", cell: (row) => row.set },
    { title: "problems", isNumber: true, cell: (row) => formatCount(row.problems) },
    { title: "attempts", isNumber: true, cell: (row) => formatCount(row.attempts) },
    { title: "first", isNumber: true, cell: (row) => formatShare(row.first) },
    { title: "best", isNumber: true, cell: (row) => formatShare(row.best) },
    { title: "at", isNumber: true, cell: (row) => versionText(row.best_version) },
    { title: "last", isNumber: true, cell: (row) => formatShare(row.last) },
    { title: "at", isNumber: true, cell: (row) => versionText(row.last_version) },
    { title: "failed", isNumber: true, cell: (row) => formatCount(row.failed) },
  ];
  return section(
    "Evaluations: success by set",
    dataTable(columns, evaluations, { label: "evaluations", empty: "no evaluation yet" }),
  );
}

function aboutRun(run) {
  const summary = run.summary_is_there
    ? el("a", { href: runLink(run.name, "files", "summary.json") }, "summary.json")
    : null;
  return section(
    "About",
    facts([
      ["note", run.note],
      ["directory", el("code", {}, run.run_dir)],
      ["began", formatTime(run.started_at)],
      ["last record", formatTime(run.updated_at)],
      ["live version", versionText(run.live_version)],
      ["servers alive", formatCount(run.servers_alive)],
      ["summary", summary],
    ]),
  );
}
