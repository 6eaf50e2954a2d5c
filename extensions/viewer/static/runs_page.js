// All runs of a directory, the newest first; two of them can be compared.

import { get } from "./api.js";
import { button, el } from "./dom.js";
import { NOT_RECORDED, formatCount, formatNumber, formatSeconds, formatShare, formatTime } from "./format.js";
import { dataTable } from "./table.js";
import { replacePage, runLink } from "./router.js";

export async function showRuns(page) {
  const runs = await get("api/runs", page.signal);
  const isFirstLook = location.hash === "";
  if (isFirstLook && runs.length === 1) {
    replacePage(runLink(runs[0].name));
    return;
  }
  const chosen = new Set();
  const compare = button("compare two runs", () => location.assign(`#/compare${runsQuery([...chosen])}`), {
    disabled: true,
    data: { compare: "" },
  });
  const choose = (name, isChosen) => {
    chosen[isChosen ? "add" : "delete"](name);
    compare.disabled = chosen.size !== 2;
  };
  page.show(
    el("div", { class: "title-line" }, el("h1", {}, "Runs"), runs.length > 1 ? compare : null),
    runTable(runs, choose),
  );
}

function runTable(runs, choose) {
  const tick = (run) =>
    el("input", {
      type: "checkbox",
      "aria-label": `compare ${run.name}`,
      data: { tick: run.name },
      listen: { change: (event) => choose(run.name, event.target.checked) },
    });
  const columns = [
    { title: "", cell: tick },
    { title: "run", cell: (run) => el("a", { href: runLink(run.name) }, run.name) },
    {
      title: "state",
      cell: (run) =>
        el("span", {}, run.state === "running" ? el("span", { class: "lamp" }) : null, run.state),
    },
    {
      title: "step",
      isNumber: true,
      cell: (run) => `${formatCount(run.step)} / ${formatCount(run.max_steps)}`,
    },
    { title: "held-out success", isNumber: true, cell: (run) => learned(run) },
    { title: "lag", isNumber: true, note: "mean, in versions", cell: (run) => formatNumber(run.lag_mean) },
    {
      title: "tokens/s",
      isNumber: true,
      note: "generated",
      cell: (run) => formatNumber(run.generation_tokens_per_s),
    },
    {
      title: "useful",
      isNumber: true,
      note: "share of the sampled tokens that were trained on",
      cell: (run) => formatShare(run.useful),
    },
    { title: "took", isNumber: true, cell: (run) => formatSeconds(run.wall_s) },
    { title: "began", isNumber: true, cell: (run) => formatTime(run.started_at) },
    { title: "note", isWide: true, cell: (run) => run.note },
    { title: "differs from the newest in", isWide: true, cell: (run) => differences(run.differs) },
  ];
  const hasNotes = runs.some((run) => run.note);
  const shown = columns.filter((column) => column.title !== "note" || hasNotes);
  return dataTable(shown, runs, {
    label: "runs",
    rowProperties: (run) => ({ data: { run: run.name } }),
    empty: "There is no run in this directory.",
  });
}

function learned({ heldout_first: first, heldout_last: last }) {
  return first === null ? NOT_RECORDED : `${formatShare(first)} → ${formatShare(last)}`;
}

function differences(pairs) {
  return pairs.map((pair) => el("code", { class: "pair" }, pair));
}

/** "?runs=A&runs=B" */
export function runsQuery(names) {
  return `?${new URLSearchParams(names.map((name) => ["runs", name.toWellFormed()]))}`;
}
