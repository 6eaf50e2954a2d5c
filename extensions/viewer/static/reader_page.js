// One rollout, turn by turn and token by token.

import { apiPath, get } from "./api.js";
import { el, facts } from "./dom.js";
import { formatCount, formatNumber, formatSeconds, formatTime } from "./format.js";
import { movesBetween } from "./keys.js";
import { openRun } from "./live.js";
import { expectedText, outcomeText, recordedText, statusText, weightsText } from "./rollout_rows.js";
import { rolloutLink, runLink } from "./router.js";
import { turnView } from "./completion.js";
import { tokenPainter } from "./token_colours.js";
import { tokenReadout } from "./token_readout.js";

let lastColouring = "weights";
const SHORT = 64; // most tokens of a rollout whose tokens are shown at once
let showsTokens = null; // as the reader has left it, also for the next rollout; null: not touched

export async function showReader(page) {
  await openRun(page);
  const [stream, offset] = page.route.rest;
  const path = apiPath(page.route.run, "rollouts", stream, offset);
  const rollout = await get(path, page.signal);
  const painter = tokenPainter(lastColouring, (colouring) => {
    lastColouring = colouring;
  });
  const readout = tokenReadout();
  const fold = { isOpen: showsTokens ?? rollout.tokens <= SHORT, set: (isOpen) => (showsTokens = isOpen) };
  const turns = rollout.completions.map((completion, turn) =>
    turnView({ rollout, completion, turn, path, painter, fold, signal: page.signal }),
  );
  const text = el("div", { class: "turns" }, turns);
  readout.watch(text);
  const tools = el("div", { class: "reader-tools" }, painter.chooser, painter.legend);
  page.show(readerHead(page.route.run, rollout), el("div", { class: "sticky" }, tools, readout.line), text);
  painter.paint(text);
  movesBetween(page, neighbour(page, rollout.previous), neighbour(page, rollout.next));
}

function neighbour(page, name) {
  return name === null ? null : rolloutLink(page.route.run, name);
}

function readerHead(run, rollout) {
  const { previous, next } = rollout;
  const moves = el(
    "nav",
    { class: "moves", "aria-label": "neighbours" },
    previous === null
      ? null
      : el("a", { href: rolloutLink(run, previous), data: { previous: "" }, title: "key k" }, "‹ previous"),
    next === null
      ? null
      : el("a", { href: rolloutLink(run, next), data: { next: "" }, title: "key j" }, "next ›"),
  );
  return el(
    "section",
    {},
    el("div", { class: "title-line" }, el("h1", {}, "Rollout ", rollout.id), moves),
    el("p", { class: "learnt", data: { verdict: "" } }, verdict(rollout)),
    facts([
      ["group", el("a", { href: runLink(run, "groups", rollout.group) }, String(rollout.group))],
      ["domain", rollout.domain],
      ["problem", rollout.problem],
      ["status", statusText(rollout.status)],
      ["reward", rewardText(rollout)],
      ["advantage", formatNumber(rollout.advantage)],
      ["tokens", formatCount(rollout.tokens)],
      ["weights", weightsText(rollout.versions)],
      ["outcome", outcomeText(rollout)],
      ["training", trainingText(rollout)],
      ["metrics", pairsText(rollout.metrics)],
      ["ended", `${formatTime(rollout.finished_at)}, after ${formatSeconds(rollout.seconds)}`],
    ]),
    rollout.reason_means ? el("p", { class: "faint" }, rollout.reason_means) : null,
    rollout.has_text === false
      ? el("p", { class: "note" }, "This run has no tokenizer: each token is shown as its id.")
      : null,
  );
}

/** The reward, why it is that, and what was expected. */
function verdict(rollout) {
  return [
    `reward ${formatNumber(rollout.reward)}: `,
    recordedText(rollout.why),
    "; expected ",
    expectedText(rollout),
  ];
}

function pairsText(pairs) {
  const entries = Object.entries(pairs ?? {});
  return entries.length === 0
    ? null
    : entries.map(([name, value]) => `${name} ${formatNumber(value)}`).join(", ");
}

function rewardText(rollout) {
  const components = pairsText(rollout.reward_components);
  const turns = (rollout.turn_rewards ?? []).some((reward) => reward !== 0 && reward !== null);
  return [
    formatNumber(rollout.reward),
    components === null ? null : ` (${components})`,
    turns ? `; by turn ${rollout.turn_rewards.map(formatNumber).join(", ")}` : null,
  ];
}

function trainingText({ training }) {
  if (training === null) {
    return null;
  }
  const isAlone = training.lag_min === training.lag_max;
  const lag = isAlone ? formatCount(training.lag_min) : `${training.lag_min} to ${training.lag_max}`;
  const place = `step ${training.step}, rank ${training.rank}, row ${training.row}`;
  const inLoss = `${formatCount(training.tokens_in_loss)} of ${formatCount(training.sampled)} tokens in the loss`;
  return `${place}; ${inLoss}; lag ${lag}; weight in the loss ${formatNumber(training.loss_weight)}`;
}
