// The files of a run: configuration, summary, logs, checkpoints.

import { apiPath, get, isReport } from "./api.js";
import { el, section } from "./dom.js";
import { formatBytes, formatCount, formatTime, versionText } from "./format.js";
import { openRun } from "./live.js";
import { dataTable } from "./table.js";
import { runLink } from "./router.js";

export async function showFiles(page) {
  await openRun(page);
  if (page.route.rest.length > 0) {
    await showFile(page, page.route.rest);
    return;
  }
  const { files, checkpoints, trace } = await get(apiPath(page.route.run, "files"), page.signal);
  page.show(
    fileTable(page.route.run, files),
    checkpointTable(checkpoints),
    isReport ? null : traceLink(trace),
  );
}

async function showFile(page, parts) {
  const file = await get(apiPath(page.route.run, "files", ...parts), page.signal);
  const text = el("pre", { class: "file", tabindex: "0", data: { file: file.id } }, file.text);
  page.show(
    el(
      "div",
      { class: "title-line" },
      el("h1", {}, file.id),
      el("a", { href: runLink(page.route.run, "files") }, "all files"),
    ),
    file.is_cut
      ? el("p", { class: "note" }, `The end of the file, of ${formatCount(file.bytes)} bytes in all.`)
      : el("p", { class: "faint" }, formatBytes(file.bytes)),
    text,
  );
  if (file.is_cut) {
    text.scrollTop = text.scrollHeight;
  }
}

function fileTable(run, files) {
  const columns = [
    {
      title: "file",
      cell: (file) =>
        el("a", { href: runLink(run, "files", ...file.id.split("/")), data: { file: file.id } }, file.id),
    },
    { title: "size", isNumber: true, cell: (file) => formatBytes(file.bytes) },
    { title: "changed", isNumber: true, cell: (file) => formatTime(file.modified_at) },
  ];
  return section("Files", dataTable(columns, files, { label: "files" }));
}

function checkpointTable(checkpoints) {
  const columns = [
    { title: "version", cell: (row) => versionText(row.version) },
    { title: "saved", isNumber: true, cell: (row) => formatTime(row.saved_at) },
  ];
  return section(
    "Checkpoints",
    dataTable(columns, checkpoints, { label: "checkpoints", empty: "no checkpoint yet" }),
  );
}

function traceLink(trace) {
  const what =
    "All requests, publications and spans of the run, for ui.perfetto.dev or chrome://tracing. It is made when you ask for it.";
  return section(
    "Trace",
    el(
      "p",
      {},
      el("a", { href: trace, download: "trace.json.gz" }, "trace.json.gz"),
      " ",
      el("span", { class: "faint" }, what),
    ),
  );
}
