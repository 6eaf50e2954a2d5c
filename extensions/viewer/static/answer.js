// An answer in its parts: the thought, which is folded, the text, and the calls of tools.

import { el, facts } from "./dom.js";
import { plural } from "./format.js";
import { sampleNodes } from "./text.js";

export function answerView(answer) {
  const isEmpty = answer.text === "" && answer.calls.length === 0;
  const notes = [
    isEmpty ? "no text" : null,
    answer.malformed > 0
      ? `${plural(answer.malformed, "call")} could not be parsed; the tokens show what was written`
      : null,
    answer.is_cut ? "shown in part; the tokens show all" : null,
  ];
  return el(
    "div",
    { class: "answer" },
    answer.thought === "" ? null : thoughtView(answer),
    answer.text === ""
      ? null
      : el("div", { class: "sample", data: { answer: "" } }, sampleNodes(answer.text)),
    answer.calls.map(callView),
    notes.map((note) => (note === null ? null : el("p", { class: "note" }, note))),
  );
}

function thoughtView(answer) {
  const count = answer.thought_tokens === null ? "" : `, ${plural(answer.thought_tokens, "token")}`;
  const title = `thought${count}${answer.thinks ? ", not ended" : ""}`;
  return el(
    "details",
    { data: { thought: "" } },
    el("summary", { class: "faint" }, title),
    el("div", { class: "sample thought faint" }, sampleNodes(answer.thought)),
  );
}

function callView([name, text]) {
  const values = argumentsOf(text);
  return el(
    "div",
    { class: "call", data: { call: "" } },
    el("p", {}, el("span", { class: "faint" }, "calls "), el("code", {}, name)),
    values === null
      ? el("div", { class: "sample" }, sampleNodes(text))
      : facts(values.map(([key, value]) => [key, el("span", { class: "sample" }, sampleNodes(value))])),
  );
}

/** Names and values as text, or null if `text` is no JSON object. Strings of several lines have no quotes. */
function argumentsOf(text) {
  try {
    const values = JSON.parse(text);
    if (values === null || typeof values !== "object" || Array.isArray(values)) {
      return null;
    }
    return Object.entries(values).map(([key, value]) => [
      key,
      typeof value === "string" && value.includes("\n") ? value : JSON.stringify(value),
    ]);
  } catch {
    return null;
  }
}
