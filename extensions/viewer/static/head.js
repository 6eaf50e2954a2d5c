// The head of each page: where one is, the state of the run, and the pages of the run.

import { isReport } from "./api.js";
import { el, replace } from "./dom.js";
import { formatCount } from "./format.js";
import { plainText } from "./text.js";
import { runLink } from "./router.js";

const TABS = [
  ["Run", "run"],
  ["Timeline", "timeline"],
  ["Servers", "servers"],
  ["Rollouts", "rollouts"],
  ["Groups", "groups"],
  ["Files", "files"],
];
const TAB_OF = { reader: "rollouts", group: "groups" };

const headElement = document.getElementById("head");
let shownHead = null;

/** Shows the head; `run` is null until the run's data are there, and then its last known state stays. */
export function showHead(page, run) {
  const { route } = page;
  if (run === null && shownHead !== null && shownHead.name === route.run) {
    markTab(route);
    return;
  }
  shownHead = run;
  const tabs = route.run === null ? [] : tabLinks(route);
  replace(headElement, whereabouts(route), run ? runState(run) : null, tabs);
  markTab(route);
  document.title = route.run === null ? "PipelineRL" : `${plainText(route.run)} · PipelineRL`;
}

function whereabouts(route) {
  const name =
    route.run === null
      ? null
      : [
          el("span", { class: "faint" }, "/"),
          el("a", { href: runLink(route.run), class: "run-name" }, route.run),
        ];
  return el(
    "div",
    { class: "where" },
    el(
      "a",
      { href: isReport && route.run !== null ? runLink(route.run) : "#/", class: "brand" },
      isReport ? "PipelineRL report" : "PipelineRL",
    ),
    name,
  );
}

function runState(run) {
  return el(
    "div",
    { class: "state" },
    run.is_live ? el("span", { class: "lamp", title: "this page is kept up to date" }) : null,
    el("span", { data: { state: run.state } }, run.state),
    el(
      "span",
      {},
      "step ",
      el("span", { class: "number", data: { step: run.step } }, formatCount(run.step)),
      ` of ${formatCount(run.max_steps)}`,
    ),
    el("span", { class: "connection", role: "status" }),
  );
}

function tabLinks(route) {
  const links = TABS.map(([title, tab]) =>
    el("a", { href: tab === "run" ? runLink(route.run) : runLink(route.run, tab), data: { tab } }, title),
  );
  return el("nav", { "aria-label": "pages of the run" }, links);
}

function markTab(route) {
  const open = TAB_OF[route.page] ?? route.page;
  for (const link of headElement.querySelectorAll("[data-tab]")) {
    if (link.dataset.tab === open) {
      link.setAttribute("aria-current", "page");
    } else {
      link.removeAttribute("aria-current");
    }
  }
}

/** Says that the stream is interrupted; "" once it goes on. */
export function showConnection(text) {
  const place = headElement.querySelector(".connection");
  if (place !== null && place.textContent !== text) {
    place.textContent = text;
  }
}
