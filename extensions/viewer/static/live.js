// Follows a run that is under way, by server-sent events.

import { apiPath, get, withQuery } from "./api.js";
import { showConnection, showHead } from "./head.js";

/** The run's state, also shown in the head. Each page of a run begins with it. */
export async function openRun(page) {
  const run = await get(apiPath(page.route.run), page.signal);
  if (!page.signal.aborted) {
    page.run = run;
    showHead(page, run);
  }
  return run;
}

/** Calls handlers.onRun and handlers.onPoints with what is new, until the page is left or the run ends. */
export function followRun(page, handlers) {
  const source = new EventSource(
    withQuery(apiPath(page.route.run, "stream"), { from: page.run.stream_from }),
  );
  source.addEventListener("open", () => showConnection(""));
  source.addEventListener("error", () => showConnection("connection lost; trying again"));
  source.addEventListener("run", (event) => {
    page.run = JSON.parse(event.data);
    showHead(page, page.run);
    handlers.onRun?.(page.run);
  });
  source.addEventListener("points", (event) => handlers.onPoints?.(JSON.parse(event.data)));
  source.addEventListener("ended", () => source.close());
  page.signal.addEventListener("abort", () => source.close());
}
