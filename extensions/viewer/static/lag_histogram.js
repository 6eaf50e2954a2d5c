// How old the weights were that sampled the tokens of each step.

import { lagColour } from "./colours.js";
import { el } from "./dom.js";
import { stackedBars } from "./stacked_bars.js";

export function lagHistogram(steps) {
  if (steps.length === 0) {
    return el(
      "figure",
      { class: "chart" },
      el("figcaption", {}, "Tokens by lag"),
      el("p", { class: "faint" }, "no step yet"),
    );
  }
  const bins = steps.map(({ version, lags }) => ({
    label: `v${version}`,
    parts: lags.map(([lag, tokens]) => [`lag ${lag}`, tokens]),
  }));
  const colourOf = (name) => lagColour(Number(name.slice(4)));
  return stackedBars({
    id: "lag_histogram",
    title: "Tokens by lag, share of each step",
    bins,
    colourOf,
    asShares: true,
    unit: "tokens",
  });
}
