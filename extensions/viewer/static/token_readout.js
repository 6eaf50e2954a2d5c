// A line that says all about the token under the pointer or with the focus.

import { el, replace } from "./dom.js";
import { versionChip } from "./rollout_rows.js";
import { formatNumber } from "./format.js";
import { tokenNumbers } from "./tokens.js";

const HINT = "Point at a token, or move over them with the arrow keys.";
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };

export function tokenReadout() {
  const line = el("p", { class: "readout", data: { readout: "" }, role: "status" }, HINT);
  const watch = (root) => {
    for (const first of root.querySelectorAll(".tokens > .token:first-child")) {
      first.setAttribute("tabindex", "0");
    }
    for (const kind of ["pointerover", "focusin"]) {
      root.addEventListener(kind, (event) => describe(event.target.closest(".token"), line));
    }
    root.addEventListener("keydown", moveOverTokens);
  };
  return { line, watch };
}

function moveOverTokens(event) {
  const token = event.target.closest(".token");
  const step = STEPS[event.key];
  if (token === null || step === undefined) {
    return;
  }
  event.preventDefault();
  const all = [...token.parentElement.querySelectorAll(".token")]; // of its turn; others may be folded
  const next = all[all.indexOf(token) + step];
  if (next !== undefined) {
    token.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }
}

function describe(token, line) {
  if (token === null) {
    return;
  }
  const ids = token.dataset.ids.split(",");
  const first = Number(token.dataset.index);
  const place = ids.length === 1 ? `token ${first}` : `tokens ${first} to ${first + ids.length - 1}`;
  replace(
    line,
    field(null, place),
    field(null, el("code", {}, JSON.stringify(tokenText(token)))),
    field("id", ids.join(", ")),
    field("log-probability", logprobText(token)),
    field(
      "weights",
      distinct(tokenNumbers(token, "versions"))
        .filter((version) => version >= 0)
        .map(versionChip),
    ),
    field("lag", listText(token, "lags")),
    field("advantage", listText(token, "advantages")),
    field(null, lossText(token)),
  );
}

function field(name, value) {
  return el(
    "span",
    { class: "field" },
    name === null ? null : el("span", { class: "faint" }, name, " "),
    value,
  );
}

function tokenText(token) {
  return [...token.childNodes]
    .map((node) => (node.nodeType === Node.TEXT_NODE || !node.matches(".line-end") ? node.textContent : ""))
    .join("");
}

function distinct(values) {
  return [...new Set(values)].filter((value) => value !== null);
}

function logprobText(token) {
  const values = tokenNumbers(token, "logprobs");
  return (
    values
      .map((value) => (value === null ? "–" : `${formatNumber(value)} (p ${formatNumber(Math.exp(value))})`))
      .join(", ") || "–"
  );
}

function listText(token, name) {
  return distinct(tokenNumbers(token, name)).map(formatNumber).join(", ") || "–";
}

function lossText(token) {
  const parts = token.dataset.loss.split(",").filter((part) => part !== "");
  if (parts.length === 0) {
    return "not trained on";
  }
  return parts.every((part) => part === "true") ? "in the loss" : "not in the loss";
}
