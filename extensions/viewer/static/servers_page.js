// The inference servers, the worst first.

import { apiPath, get } from "./api.js";
import { el } from "./dom.js";
import { NOT_RECORDED, formatCount, formatNumber, formatSeconds, formatTime } from "./format.js";
import { openRun } from "./live.js";
import { versionChip } from "./rollout_rows.js";
import { dataTable } from "./table.js";

const STATE_CLASS = { live: "good", "left: the run ended": "faint" };
const ASK_EVERY_MS = 3000;

const SERVER_COLUMNS = [
  { title: "server", cell: (row) => [el("b", {}, row.name), below(row.url)] },
  {
    title: "state",
    isWide: true,
    cell: (row) => [
      el("span", { class: STATE_CLASS[row.state] ?? "bad" }, row.state),
      below(`joined ${clockOf(row.joined_at)}`),
    ],
  },
  { title: "weights", cell: (row) => (row.version === null ? NOT_RECORDED : versionChip(row.version)) },
  { title: "tokens/s", isNumber: true, cell: (row) => formatNumber(row.tokens_per_s) },
  {
    title: "requests",
    isNumber: true,
    cell: (row) => [formatCount(row.requests), below(`last ${clockOf(row.last_request_at)}`)],
  },
  { title: "tokens", isNumber: true, cell: (row) => formatCount(row.tokens) },
  { title: "aborted", isNumber: true, cell: (row) => troubled(row.aborted) },
  {
    title: "pause for weights",
    isNumber: true,
    note: "how long generation stood still for the newest weights",
    cell: (row) => [formatSeconds(row.paused_s_last), below(`at most ${formatSeconds(row.paused_s_max)}`)],
  },
  {
    title: "transfer",
    isNumber: true,
    note: "how long the newest weights took to arrive",
    cell: (row) => formatSeconds(row.transfer_s_last),
  },
  { title: "engine", cell: (row) => [row.engine ?? NOT_RECORDED, below(row.node)] },
];

function below(text) {
  return el("span", { class: "faint below" }, text);
}

function clockOf(time) {
  return formatTime(time).split(" ").at(-1);
}

export async function showServers(page) {
  await openRun(page);
  const path = apiPath(page.route.run, "servers");
  let askedAt = performance.now();
  const show = (answer) => page.show(el("h1", {}, "Inference servers"), serverTable(answer));
  show(await get(path, page.signal));
  return {
    onRun: async () => {
      if (performance.now() - askedAt > ASK_EVERY_MS) {
        askedAt = performance.now();
        await get(path, page.signal).then(show, () => null);
      }
    },
  };
}

function troubled(count) {
  return count > 0 ? el("span", { class: "bad" }, formatCount(count)) : formatCount(count);
}

function serverTable({ servers, requests_recent: recent }) {
  const rowProperties = (row) => ({ data: { server: row.name } });
  return [
    el(
      "p",
      { class: "faint" },
      `Live servers first, the one with the fewest tokens per second at the top. Rates are of the last ${formatCount(recent)} rollouts.`,
    ),
    dataTable(SERVER_COLUMNS, servers, { label: "servers", rowProperties, empty: "no server has joined yet" }),
  ];
}
