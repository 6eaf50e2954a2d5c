// Sampled tokens as elements. A piece is the text of one token, or of several that together are a character.

import { el } from "./dom.js";
import { sampleNodes } from "./text.js";

const FACTS = [
  ["ids", "ids"],
  ["logprobs", "logprobs"],
  ["versions", "versions"],
  ["lags", "lags"],
  ["advantages", "advantages"],
  ["loss", "in_loss"],
];

/** Elements for the pieces of `chunk`; `before` is the version of the token in front of it, or null. */
export function tokenNodes(chunk, turn, before) {
  const segments = new Set(chunk.segments.filter((index) => index > 0));
  const nodes = [];
  let version = before;
  for (const [text, first, count] of chunk.pieces) {
    const begin = first - chunk.from;
    const versions = chunk.versions.slice(begin, begin + count);
    nodes.push(...barsBefore(version, versions, hasSegment(segments, first, count)));
    nodes.push(tokenNode(chunk, turn, text, first, count));
    version = versions.at(-1) ?? version;
  }
  return nodes;
}

function hasSegment(segments, first, count) {
  for (let index = first; index < first + count; index += 1) {
    if (segments.has(index)) {
      return true;
    }
  }
  return false;
}

function barsBefore(version, versions, isSegment) {
  const changed = [version, ...versions].find(
    (one, index, all) => index > 0 && all[index - 1] !== null && one !== all[index - 1],
  );
  const bars = [];
  if (isSegment) {
    bars.push(boundary("segment", "next request"));
  }
  if (changed !== undefined) {
    bars.push(boundary("version", `v${changed}`));
  }
  return bars;
}

function boundary(kind, label) {
  return el("span", {
    class: `boundary ${kind}`,
    data: { boundary: kind, label },
    title: kind === "version" ? `from here ${label}` : label,
    role: "separator",
  });
}

function tokenNode(chunk, turn, text, first, count) {
  const begin = first - chunk.from;
  const data = { index: first, completion: turn };
  for (const [name, key] of FACTS) {
    data[name] = joined(chunk[key], begin, count);
  }
  return el("span", { class: "token", tabindex: "-1", data }, sampleNodes(text));
}

/** Values as JSON has them, by commas; nothing where there is none. */
function joined(values, begin, count) {
  if (!values) {
    return "";
  }
  return values
    .slice(begin, begin + count)
    .map((value) => (value === null ? "" : String(value)))
    .join(",");
}

/** The values of a token's data, as numbers; null where there is none. */
export function tokenNumbers(token, name) {
  const text = token.dataset[name];
  return text === "" ? [] : text.split(",").map((part) => (part === "" ? null : Number(part)));
}
