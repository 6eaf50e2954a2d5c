// Colours tokens by one of their values, and explains the colours.

import { el, replace } from "./dom.js";
import { versionIndex } from "./colours.js";
import { formatNumber } from "./format.js";
import { tokenNumbers } from "./tokens.js";

const COLOURINGS = ["weights", "log-probability", "advantage", "lag"];
const LOGPROB_LIMITS = [-0.05, -0.2, -0.5, -1, -2, -4];

/** {chooser, legend, paint(root), repaint()}: paints all tokens in an element by what is chosen. */
export function tokenPainter(colouring, chosen) {
  let by = colouring;
  const legend = el("p", { class: "legend" });
  let tokensIn = null;
  const repaint = () => {
    const tokens = [...tokensIn.querySelectorAll(".token")];
    paintTokens(tokens, by);
    replace(legend, legendOf(by, tokens));
  };
  const choose = (event) => {
    by = event.target.value;
    chosen(by);
    repaint();
  };
  const choices = COLOURINGS.map((name) =>
    el(
      "label",
      {},
      el("input", { type: "radio", name: "colouring", value: name, checked: name === by }),
      name,
    ),
  );
  const chooser = el(
    "fieldset",
    { class: "choices", listen: { change: choose } },
    el("legend", {}, "colour by"),
    choices,
  );
  const paint = (root) => {
    tokensIn = root;
    repaint();
  };
  return { chooser, legend, paint, repaint };
}

function paintTokens(tokens, by) {
  const largest = by === "advantage" ? largestAdvantage(tokens) : 0;
  for (const token of tokens) {
    token.className = `token ${tokenClass(token, by, largest)}`;
  }
}

function largestAdvantage(tokens) {
  const all = tokens.flatMap((token) => tokenNumbers(token, "advantages"));
  return all.reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
}

function tokenClass(token, by, largest) {
  if (by === "weights") {
    const version = tokenNumbers(token, "versions")[0];
    return version === undefined || version < 0 ? "none" : `v${versionIndex(version)}`;
  }
  if (by === "log-probability") {
    return logprobClass(tokenNumbers(token, "logprobs"));
  }
  if (by === "advantage") {
    return advantageClass(tokenNumbers(token, "advantages")[0], largest);
  }
  const lag = tokenNumbers(token, "lags")[0];
  return lag === undefined || lag === null ? "none" : `l${Math.min(lag, 5)}`;
}

function logprobClass(logprobs) {
  if (logprobs.length === 0 || logprobs.includes(null)) {
    return "none";
  }
  const sum = logprobs.reduce((total, value) => total + value, 0);
  const level = LOGPROB_LIMITS.findIndex((limit) => sum >= limit);
  return `p${level === -1 ? LOGPROB_LIMITS.length : level}`;
}

function advantageClass(advantage, largest) {
  if (advantage === undefined || advantage === null) {
    return "none";
  }
  const level = largest > 0 ? Math.ceil((Math.abs(advantage) / largest) * 4) : 0;
  return `${advantage < 0 ? "down" : "up"}${level}`;
}

function legendOf(by, tokens) {
  if (by === "weights") {
    const versions = [...new Set(tokens.flatMap((token) => tokenNumbers(token, "versions")))].filter(
      (version) => version >= 0,
    );
    return versions.map((version) => swatch(`v${versionIndex(version)}`, `v${version}`));
  }
  if (by === "log-probability") {
    const names = LOGPROB_LIMITS.map((limit) => `≥ ${formatNumber(limit)}`);
    return [...names, `< ${formatNumber(LOGPROB_LIMITS.at(-1))}`].map((name, level) =>
      swatch(`p${level}`, name),
    );
  }
  if (by === "advantage") {
    const names = [
      ["down4", "worse than its group"],
      ["up0", "0"],
      ["up4", "better"],
    ];
    return [...names, ["none", "not trained on"]].map(([shade, name]) => swatch(shade, name));
  }
  return [
    ...[0, 1, 2, 3, 4, 5].map((lag) => swatch(`l${lag}`, lag === 5 ? "5 or more versions" : String(lag))),
    swatch("none", "not trained on"),
  ];
}

function swatch(shade, text) {
  return el("span", { class: "entry" }, el("span", { class: `swatch ${shade}` }), text);
}
