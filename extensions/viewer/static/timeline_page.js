// The timeline: requests by server, coloured by the weights that sampled them, and what each process did.

import { onSchemeChange } from "./colours.js";
import { button, el } from "./dom.js";
import { openRun } from "./live.js";
import { legendEntry } from "./stacked_bars.js";
import { processLegend } from "./timeline_colours.js";
import { drawTimeline } from "./timeline_draw.js";
import { watchTimeline } from "./timeline_input.js";
import { drawOverview, watchOverview } from "./timeline_overview.js";
import { rolloutLink } from "./router.js";
import { loadNewest, loadSpan, moveSpan, stopLoading } from "./timeline_data.js";
import { panned, wholeRun, zoomed } from "./timeline_span.js";

export async function showTimeline(page) {
  await openRun(page);
  const view = {
    page,
    data: null,
    span: null,
    follows: false,
    selected: null,
    elements: timelineElements(),
    requests: 0,
    timer: 0,
    draw: () => drawAll(view),
    moveTo: (span) => moveSpan(view, span),
    open: (bar) => openBar(page, bar),
  };
  await loadSpan(view, askedSpan(page.route.query));
  if (view.data.run_ended === null) {
    page.show(
      el("p", { class: "note" }, "No weights were published yet; requests are shown from the first ones on."),
    );
    return { onRun: () => window.dispatchEvent(new Event("hashchange")) };
  }
  const { canvas, overview, line, note } = view.elements;
  page.show(tools(view), overview, canvas, line, note, legend());
  watchTimeline(view);
  watchOverview(view);
  watchSize(view);
  onSchemeChange(view.draw, page.signal);
  view.draw();
  return { onRun: () => view.follows && loadNewest(view) };
}

function timelineElements() {
  return {
    canvas: el("canvas", {
      id: "timeline",
      tabindex: "0",
      role: "application",
      "aria-label": "requests by server over time; arrow keys choose one, Enter opens it, + and − zoom",
    }),
    overview: el("canvas", {
      id: "overview",
      role: "img",
      "aria-label": "all publications of the run, and the part that is shown",
    }),
    line: el("p", { class: "readout", data: { readout: "" }, role: "status" }, "\u00a0"),
    note: el("p", { class: "note" }),
  };
}

function askedSpan(query) {
  const began = Number(query.get("began"));
  const ended = Number(query.get("ended"));
  return began > 0 && ended > began ? { began, ended } : null;
}

function drawAll(view) {
  drawTimeline(view);
  drawOverview(view);
}

function openBar(page, bar) {
  if (bar.r !== null && bar.r !== undefined) {
    location.hash = rolloutLink(page.route.run, bar.r);
  }
}

function watchSize(view) {
  const observer = new ResizeObserver(() => requestAnimationFrame(view.draw));
  observer.observe(view.elements.canvas.parentElement);
  view.page.signal.addEventListener("abort", () => {
    observer.disconnect();
    stopLoading(view);
  });
}

function tools(view) {
  const move = (change) => () => view.moveTo(change(view.span, view.data));
  const follow = button("follow the newest", () => toggleFollow(view), {
    "aria-pressed": "false",
    data: { follow: "" },
  });
  view.elements.follow = follow;
  return el(
    "div",
    { class: "tools", role: "toolbar", "aria-label": "time that is shown" },
    button(
      "‹ earlier",
      move((span) => panned(span, -0.75)),
      { data: { earlier: "" } },
    ),
    button(
      "later ›",
      move((span) => panned(span, 0.75)),
      { data: { later: "" } },
    ),
    button(
      "zoom in",
      move((span) => zoomed(span, 0.5)),
      { data: { zoom: "in" } },
    ),
    button(
      "zoom out",
      move((span) => zoomed(span, 2)),
      { data: { zoom: "out" } },
    ),
    button(
      "whole run",
      move((_, data) => wholeRun(data)),
      { data: { whole: "" } },
    ),
    button("last update", () => loadNewest(view), { data: { newest: "" } }),
    view.page.run.is_live ? follow : null,
    el("span", { class: "faint" }, "wheel: zoom · drag: choose a time · shift and drag: move"),
  );
}

function toggleFollow(view) {
  view.follows = !view.follows;
  view.elements.follow.setAttribute("aria-pressed", String(view.follows));
  if (view.follows) {
    loadNewest(view);
  }
}

function legend() {
  const versions =
    "A bar is a request; its colours are the weight versions that sampled it. Line: new weights go live. Grey: they are under way.";
  return el(
    "p",
    { class: "legend" },
    el("span", { class: "entry" }, versions),
    processLegend().map(([colour, text]) => legendEntry(colour, text)),
  );
}
