// One turn of a rollout: the prompt it adds, the answer, and its tokens, the first 4,000 of them at first.

import { answerView } from "./answer.js";
import { get, withQuery } from "./api.js";
import { alertBox, button, el } from "./dom.js";
import { formatCount, formatNumber, formatSeconds, plural } from "./format.js";
import { sampleNodes } from "./text.js";
import { tokenNodes } from "./tokens.js";

const OWN_SEQUENCE = "This turn begins a sequence of its own: its prompt does not extend the turn before.";

export function turnView(given) {
  const { rollout, completion, turn } = given;
  const isOnly = rollout.completions.length === 1;
  const place = el("div", {
    class: "sample tokens",
    role: "group",
    "aria-label": `sampled tokens of turn ${turn + 1}`,
  });
  const view = el(
    "section",
    { class: "turn", data: { turn } },
    isOnly ? null : el("h2", {}, `Turn ${turn + 1}`),
    promptView(completion, turn),
    el("p", { class: "turn-facts faint" }, turnFacts(completion)),
    completion.unparsed === null
      ? null
      : el("p", { class: "note" }, "Thought, text and calls cannot be shown apart: ", completion.unparsed),
    completion.answer === null ? place : [answerView(completion.answer), foldedTokens(given, place)],
  );
  appendTokens(given, place, completion, null);
  return view;
}

function foldedTokens({ turn, fold }, place) {
  const summary = el("summary", { class: "faint" }, "its tokens one by one");
  const details = el("details", { class: "raw", open: fold.isOpen, data: { raw: turn } }, summary, place);
  summary.addEventListener("click", () => fold.set(!details.open));
  return details;
}

function promptView(completion, turn) {
  const text = promptText(completion);
  const whole = plural(completion.prompt_tokens, "token");
  const title = completion.begins
    ? `prompt, ${whole}`
    : `new in the prompt, ${formatCount(completion.new_tokens)} of its ${whole}`;
  const summary = completion.prompt_is_cut ? `${title}, shown in part` : title;
  if (turn === 0 || !completion.begins) {
    return el("div", { class: "prompt" }, el("p", { class: "faint" }, summary), text);
  }
  return el(
    "div",
    { class: "prompt" },
    el("p", { class: "note" }, OWN_SEQUENCE),
    el("details", {}, el("summary", { class: "faint" }, summary), text),
  );
}

/** {prompt: parts of text, messages}: the messages of a prompt, and folded the text that the model reads. */
export function promptText({ prompt, messages }) {
  const parts = prompt.map(([part, isSpecial]) =>
    isSpecial ? el("span", { class: "special" }, sampleNodes(part)) : sampleNodes(part),
  );
  const whole = el("div", { class: "sample prompt-text", tabindex: "0", data: { prompt: "" } }, parts);
  if (messages.length === 0) {
    return whole;
  }
  const folded = el("summary", { class: "faint" }, "as the model reads it, with special tokens");
  return [messages.map(messageView), el("details", {}, folded, whole)];
}

function messageView([role, text]) {
  return el(
    "div",
    { class: "message", data: { role } },
    el("p", { class: "role" }, role),
    el("div", { class: "sample", tabindex: "0" }, sampleNodes(text)),
  );
}

function turnFacts(completion) {
  const isTimed = completion.began !== null && completion.ended !== null;
  const seconds = isTimed ? completion.ended - completion.began : null;
  const segments = completion.segments.length > 1 ? `; ${completion.segments.length} requests` : "";
  return [
    `${plural(completion.tokens, "token")} in ${formatSeconds(seconds)}; ended by ${completion.finish_reason}`,
    `; temperature ${formatNumber(completion.temperature)}; on ${completion.server}${segments}`,
  ];
}

function appendTokens(given, place, chunk, before) {
  place.append(...tokenNodes(chunk, given.turn, before));
  if (chunk.next_from !== null) {
    place.after(moreButton(given, place, chunk));
  }
}

function moreButton(given, place, chunk) {
  const rest = given.completion.tokens - chunk.next_from;
  const more = button(`more: ${formatCount(rest)} tokens are not shown yet`, load, {
    data: { more: given.turn },
  });
  async function load() {
    more.disabled = true;
    try {
      const answer = await get(
        withQuery(given.path, { turn: given.turn, from: chunk.next_from }),
        given.signal,
      );
      more.remove();
      appendTokens(given, place, answer.completions[0], chunk.versions.at(-1));
      given.painter.repaint();
    } catch (error) {
      more.replaceWith(alertBox(error.message));
    }
  }
  return more;
}
