// Shows the page that the fragment asks for. A page stays until the data of the next one are there.

import { isReport } from "./api.js";
import { alertBox, replace } from "./dom.js";
import { followRun } from "./live.js";
import { showHead } from "./head.js";
import { addPage, parentLink, parseRoute } from "./router.js";
import { showAccounting } from "./accounting_page.js";
import { showCompare } from "./compare_page.js";
import { showFiles } from "./files_page.js";
import { showGroup } from "./group_page.js";
import { showReader } from "./reader_page.js";
import { showRollouts } from "./rollouts_page.js";
import { showRun } from "./run_page.js";
import { showRuns } from "./runs_page.js";
import { showServers } from "./servers_page.js";
import { showTimeline } from "./timeline_page.js";

const PAGES = {
  runs: showRuns,
  compare: showCompare,
  run: showRun,
  timeline: showTimeline,
  servers: showServers,
  rollouts: showRollouts,
  group: showGroup,
  reader: showReader,
  groups: showAccounting,
  files: showFiles,
};

const mainElement = document.getElementById("main");
const scrolledTo = new Map();
let leaving = new AbortController();
let current = { route: null, visit: 0, depth: 0 };
let lastVisit = 0;

function makePage(route, signal) {
  return {
    route,
    signal,
    run: null,
    show(...nodes) {
      if (!signal.aborted) {
        replace(mainElement, nodes);
      }
    },
  };
}

async function enter() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const route = parseRoute(location.hash);
  const cameBefore = arrive(route);
  document.body.dataset.ready = "false";
  try {
    await fillPage(makePage(route, signal));
  } catch (error) {
    showError(error, signal);
  }
  if (!signal.aborted) {
    document.body.dataset.ready = "true";
    window.scrollTo(0, cameBefore);
  }
}

/** Notes where the page before was scrolled to, and returns where this one was, if Back led to it. */
function arrive(route) {
  scrolledTo.set(current.visit, window.scrollY);
  const isKnown = history.state?.visit !== undefined;
  if (!isKnown) {
    lastVisit += 1;
    history.replaceState({ visit: lastVisit, depth: history.state?.depth ?? current.depth + 1 }, "");
  }
  current = { route, ...history.state };
  return isKnown ? (scrolledTo.get(current.visit) ?? 0) : 0;
}

async function fillPage(page) {
  const { route, signal } = page;
  document.body.dataset.page = route.page ?? "";
  showHead(page, null);
  if (route.page === undefined) {
    throw new Error("there is no such page");
  }
  const handlers = await PAGES[route.page](page);
  if (page.run?.is_live && !isReport && !signal.aborted) {
    followRun(page, handlers ?? {});
  }
}

function showError(error, signal) {
  if (signal.aborted || error.name === "AbortError") {
    return;
  }
  replace(mainElement, alertBox(error.message));
}

function leaveByEscape(event) {
  if (event.key !== "Escape" || event.defaultPrevented || event.target.closest("input, select, dialog")) {
    return;
  }
  if (current.depth > 1) {
    history.back();
  } else {
    addPage(parentLink(current.route));
  }
}

window.addEventListener("hashchange", enter);
document.addEventListener("keydown", leaveByEscape);
history.scrollRestoration = "manual";
enter();
