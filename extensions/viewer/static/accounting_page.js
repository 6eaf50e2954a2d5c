// What became of all groups: started = trained + dropped + in flight.

import { apiPath, get } from "./api.js";
import { REASON_COLOURS, TRAINED_COLOUR } from "./colours.js";
import { alertBox, el, section } from "./dom.js";
import { NOT_RECORDED, formatCount, formatPercent } from "./format.js";
import { openRun } from "./live.js";
import { legendEntry, stackedBars } from "./stacked_bars.js";
import { runLink, wellFormed } from "./router.js";

const fixedColours = { __proto__: null, trained: TRAINED_COLOUR, "in flight": "var(--rule)" };

export async function showAccounting(page) {
  await openRun(page);
  const { run } = page.route;
  const accounts = await get(apiPath(run, "accounting"), page.signal);
  const reasons = reasonsOf(accounts);
  const colourOf = (name) =>
    fixedColours[name] ?? REASON_COLOURS[reasons.indexOf(name) % REASON_COLOURS.length];
  page.show(
    el("h1", {}, "What became of the groups"),
    equation(accounts),
    accounts.errors.map(alertBox),
    ledger(run, accounts, reasons, colourOf),
    section("Over the run", barsOverVersions(accounts, reasons, colourOf)),
  );
}

/** All reasons, those that dropped most groups first. */
function reasonsOf({ groups, rollouts, by_version: bins }) {
  const known = new Set([
    ...Object.keys(groups.dropped),
    ...Object.keys(rollouts.dropped),
    ...bins.flatMap((bin) => Object.keys(bin.dropped)),
  ]);
  return [...known].sort((a, b) => (groups.dropped[b] ?? 0) - (groups.dropped[a] ?? 0));
}

function droppedSum({ dropped }) {
  return Object.values(dropped).reduce((sum, count) => sum + count, 0);
}

function equation({ groups, holds }) {
  const parts = [
    [groups.started, "started", ""],
    [groups.trained, "trained", "="],
    [droppedSum(groups), "dropped", "+"],
    [groups.in_flight, "in flight", "+"],
  ];
  const terms = parts.map(([count, name, sign]) => [
    sign === "" ? null : el("span", { class: "sign" }, sign),
    el("span", { class: "term" }, el("b", {}, formatCount(count)), el("span", {}, name)),
  ]);
  const verdict = holds
    ? "The sum holds: each group is counted exactly once."
    : "The sum does not hold: some groups are settled twice or never.";
  return el(
    "div",
    { class: "equation", data: { holds: String(holds) } },
    el("p", { class: "terms" }, terms),
    el("p", holds ? { class: "holds" } : { role: "alert", class: "alert" }, verdict),
  );
}

const LEDGER_HEAD = ["", "groups", "of all", "rollouts", "meaning"];

function ledger(run, accounts, reasons, colourOf) {
  const numbers = LEDGER_HEAD.map((_, index) => (index > 0 && index < 4 ? "number" : ""));
  const head = LEDGER_HEAD.map((title, index) => el("th", { scope: "col", class: numbers[index] }, title));
  const properties = { "aria-label": "groups by what became of them", class: "ledger" };
  const body = [...settledLines(run, accounts, reasons, colourOf), ...sumLines(accounts)];
  return el(
    "div",
    { class: "scroll" },
    el("table", properties, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)),
  );
}

function settledLines(run, accounts, reasons, colourOf) {
  const { groups, rollouts, zero_advantage: zero } = accounts;
  const line = ledgerLine(groups.started);
  const inFlight = [groups.in_flight, rollouts.in_flight, "under way, or not settled when the run stopped"];
  return [
    line(
      legendEntry(colourOf("trained"), "trained"),
      groups.trained,
      rollouts.trained,
      "its step made a weight version",
    ),
    ...reasons.flatMap((reason) => [
      line(
        reasonName(run, reason, colourOf),
        groups.dropped[reason] ?? 0,
        rollouts.dropped[reason] ?? 0,
        accounts.reasons[reason]?.full ?? NOT_RECORDED,
      ),
      ...(reason === "zero_advantage" && zero !== null ? zeroLines(zero, groups.started) : []),
    ]),
    line(legendEntry(colourOf("in flight"), "in flight"), ...inFlight),
  ];
}

function sumLines({ groups, rollouts }) {
  const line = ledgerLine(groups.started, { class: "sum" });
  const sumOf = (counts) => counts.trained + droppedSum(counts) + counts.in_flight;
  const lost = rollouts.lost === 0 ? "none was lost" : `${formatCount(rollouts.lost)} rollouts were lost`;
  return [
    line("sum", sumOf(groups), sumOf(rollouts), ""),
    line("started", groups.started, rollouts.started, lost),
  ];
}

/** A function that makes a line of the table, with the share of all groups. */
function ledgerLine(started, properties = {}) {
  return (name, count, ofRollouts, meaning) =>
    el(
      "tr",
      properties,
      el("th", { scope: "row" }, name),
      numberCell(formatCount(count)),
      numberCell(shareOf(count, started)),
      numberCell(formatCount(ofRollouts)),
      el("td", { class: "wide" }, meaning),
    );
}

function numberCell(text) {
  return el("td", { class: "number" }, text);
}

function shareOf(count, all) {
  return all > 0 ? formatPercent(count / all) : NOT_RECORDED;
}

function reasonName(run, reason, colourOf) {
  const link = `${runLink(run, "rollouts")}?outcome=${wellFormed(`dropped: ${reason}`)}`;
  return legendEntry(colourOf(reason), ["dropped: ", el("a", { href: link }, reason)]);
}

function zeroLines(zero, started) {
  const kinds = [
    ["every member solved it", zero.solved],
    ["no member solved it", zero.hopeless],
    ["other", zero.other],
  ];
  const counted = kinds.filter(([, count]) => count !== null && count !== undefined);
  return counted.map(([name, count]) =>
    el(
      "tr",
      { class: "part" },
      el("th", { scope: "row" }, name),
      numberCell(formatCount(count)),
      numberCell(shareOf(count, started)),
      numberCell(""),
      el("td", {}),
    ),
  );
}

function barsOverVersions({ by_version: bins, versions_per_bin: perBin }, reasons, colourOf) {
  if (bins.length === 0) {
    return el("p", { class: "faint" }, "no group is settled yet");
  }
  const label = (version) => (perBin === 1 ? `v${version}` : `v${version} to v${version + perBin - 1}`);
  const dropped = (bin) => reasons.map((reason) => [reason, bin.dropped[reason] ?? 0]);
  const parts = (bin) => [["trained", bin.trained], ...dropped(bin), ["in flight", bin.in_flight ?? 0]];
  const bars = bins.map((bin) => ({ label: label(bin.version), parts: parts(bin) }));
  return stackedBars({
    id: "accounting",
    title: "Groups by the version that was live when they were started",
    bins: bars,
    colourOf,
    unit: "groups",
  });
}
