// Rows of rollouts, and what became of one, in words.

import { el } from "./dom.js";
import { versionIndex } from "./colours.js";
import { NOT_RECORDED, formatCount, formatNumber, formatSeconds, formatTime } from "./format.js";
import { dataTable } from "./table.js";
import { rolloutLink, runLink } from "./router.js";

const ROLLOUT_COLUMNS = [
  {
    title: "group",
    isNumber: true,
    cell: (row, run) => el("a", { href: runLink(run, "groups", row.group) }, String(row.group)),
  },
  { title: "rollout", cell: (row, run) => el("a", { href: rolloutLink(run, row.r) }, row.id) },
  { title: "domain", isCut: true, cell: (row) => row.domain },
  { title: "prompt", isCut: true, isText: true, cell: (row) => lineText(row.asked) },
  { title: "answer", isCut: true, isText: true, cell: (row) => lineText(row.answered) },
  { title: "reward", isNumber: true, cell: (row) => formatNumber(row.reward) },
  { title: "why", isCut: true, cell: (row) => row.why ?? NOT_RECORDED },
  { title: "status", isCut: true, cell: (row) => statusText(row.status) },
  { title: "advantage", isNumber: true, cell: (row) => formatNumber(row.advantage) },
  { title: "tokens", isNumber: true, cell: (row) => formatCount(row.tokens) },
  { title: "turns", isNumber: true, cell: (row) => formatCount(row.turns) },
  { title: "weights", cell: (row) => weightsText(row.versions) },
  { title: "lag", isNumber: true, note: "largest, in versions", cell: (row) => formatNumber(row.lag) },
  { title: "outcome", isCut: true, cell: (row) => outcomeText(row) },
  { title: "took", isNumber: true, cell: (row) => formatSeconds(row.seconds) },
  { title: "ended", isNumber: true, cell: (row) => formatTime(row.finished_at).split(" ").at(-1) },
];

export function rolloutTable(run, rows) {
  const unshown = new Set([
    rows.some((row) => row.turns > 1) ? "" : "turns",
    new Set(rows.map((row) => row.domain)).size > 1 ? "" : "domain",
    rows.some((row) => row.status !== "ok") ? "" : "status",
  ]);
  const shown = ROLLOUT_COLUMNS.filter((column) => !unshown.has(column.title));
  const columns = shown.map((column) => ({ ...column, cell: (row) => column.cell(row, run) }));
  const rowProperties = (row) => ({
    class: "opens",
    data: { rollout: row.r },
    listen: { click: (event) => openRow(event, rolloutLink(run, row.r)) },
  });
  return dataTable(columns, rows, { label: "rollouts", rowProperties, empty: "No rollout is like this." });
}

/** A prompt or an answer in one line; null: not recorded, or no tokens. */
function lineText(line) {
  return line === null || line === "" ? el("span", { class: "faint" }, NOT_RECORDED) : line;
}

function openRow(event, link) {
  const isSelecting = String(getSelection()) !== "";
  if (event.target.closest("a") === null && !isSelecting) {
    location.hash = link;
  }
}

/** What the record says for people; null: earlier code did not record it. */
export function recordedText(text) {
  return text === null || text === undefined
    ? el("span", { class: "faint" }, "not recorded")
    : el("span", { class: "recorded" }, text || "none");
}

/** The right answer; a domain may name none. */
export function expectedText({ expected, why }) {
  return recordedText(expected ?? (why === null ? null : ""));
}

export function statusText(status) {
  return el("span", { class: status === "ok" ? "" : "bad" }, status);
}

/** A square in the version's colour, and its number. */
export function versionChip(version) {
  return el(
    "span",
    { class: "chip" },
    el("span", { class: `square v${versionIndex(version)}` }),
    `v${version}`,
  );
}

/** The versions that sampled a rollout, oldest first. */
export function weightsText(versions) {
  if (!versions || versions.length === 0) {
    return NOT_RECORDED;
  }
  const [first, last] = [versions[0], versions.at(-1)];
  if (first === last) {
    return versionChip(first);
  }
  return [
    versionChip(first),
    el("span", { class: "faint" }, last > first + 1 ? " … " : " → "),
    versionChip(last),
  ];
}

/** "trained → v41", "dropped: stale", "in flight". */
export function outcomeText(row) {
  if (row.outcome === "trained") {
    return el(
      "span",
      {},
      "trained",
      row.trained_version === null ? null : [" → ", versionChip(row.trained_version)],
    );
  }
  if (row.outcome === "dropped") {
    return el("span", { class: "dropped", title: row.reason_means }, `dropped: ${row.reason}`);
  }
  return row.outcome === "in flight" ? "not settled yet" : (row.outcome ?? NOT_RECORDED);
}
