// Gets the data of the time that the timeline shows.

import { apiPath, get, isReport, withQuery } from "./api.js";
import { replace } from "./dom.js";
import { formatCount } from "./format.js";
import { runLink } from "./router.js";

const MOST = 4000; // rollouts that are not merged, as in answers/timeline.py
const LOAD_AFTER_MS = 150;

/** Gets the data of a span of time and shows that span; null is the last update that requests cross. */
export async function loadSpan(view, span) {
  const data = await newestAnswer(view, span);
  if (data !== null) {
    view.data = data;
    view.span = span ?? { began: data.began, ended: data.ended };
    replace(view.elements.note, noteOn(data));
  }
}

export async function loadNewest(view) {
  await loadSpan(view, null).then(view.draw, (error) => showLoadError(view, error));
}

/** The answer, or null where another span was asked for meanwhile. */
async function newestAnswer(view, span) {
  stopLoading(view);
  const request = view.requests;
  const path = apiPath(view.page.route.run, "timeline");
  const data = await get(withQuery(path, span ?? {}), view.page.signal);
  return request === view.requests ? data : null;
}

/** Gives up what is under way. */
export function stopLoading(view) {
  clearTimeout(view.timer);
  view.requests += 1;
}

function noteOn({ is_merged: isMerged }) {
  if (isReport) {
    return "This file has the requests of this time only, not those of the whole run.";
  }
  if (!isMerged) {
    return "";
  }
  const shown = "the height is how many requests a server has at a time, the colours are their weights";
  return `The requests of more than ${formatCount(MOST)} rollouts are merged: ${shown}. Zoom in, or click, for fewer.`;
}

/** Shows another span at once with the data that are there, and asks for those that are not. */
export function moveSpan(view, span) {
  stopLoading(view);
  view.span = span;
  view.follows = false;
  view.elements.follow?.setAttribute("aria-pressed", "false");
  view.draw();
  view.timer = setTimeout(() => settle(view, span), LOAD_AFTER_MS);
}

async function settle(view, span) {
  history.replaceState(history.state, "", withQuery(runLink(view.page.route.run, "timeline"), span));
  const { began, ended, is_merged: isMerged } = view.data;
  const isHere = span.began >= began && span.ended <= ended && !isMerged;
  if (!isHere && !isReport) {
    await loadSpan(view, span).then(view.draw, (error) => showLoadError(view, error));
  }
}

function showLoadError(view, error) {
  if (error.name !== "AbortError") {
    replace(view.elements.note, error.message);
  }
}
