// All data come through get(). In a report the answers are in the file itself, by their paths.

import { wellFormed } from "./router.js";

const recordedElement = document.getElementById("recorded");
const recordedAnswers = recordedElement
  ? new Map(Object.entries(JSON.parse(recordedElement.textContent)))
  : null;

export const isReport = recordedAnswers !== null;

/** The answer to GET `path`, such as api/runs. */
export async function get(path, signal) {
  if (isReport) {
    return recordedAnswer(path);
  }
  const response = await fetch(path, { signal }).catch(unreachable);
  const answer = await response.json().catch(() => null);
  if (!response.ok || answer === null) {
    throw new Error(answer?.error ?? `the viewer answered with status ${response.status}`);
  }
  return answer;
}

function recordedAnswer(path) {
  if (!recordedAnswers.has(path)) {
    throw new Error("not in this file");
  }
  return recordedAnswers.get(path);
}

function unreachable(error) {
  if (error.name === "AbortError") {
    throw error;
  }
  throw new Error("the viewer does not answer: is it still running?");
}

/** The path of a run's data: apiPath("run-1", "groups", 17), with a query where one is given. */
export function apiPath(run, ...parts) {
  return ["api/runs", ...[run, ...parts].map((part) => wellFormed(String(part)))].join("/");
}

/** `path` with those of `parameters` that have a value. */
export function withQuery(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") {
      query.append(name, value);
    }
  }
  const text = query.toString();
  return text === "" ? path : `${path}?${text}`;
}
