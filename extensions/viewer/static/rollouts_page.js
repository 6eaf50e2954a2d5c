// The rollouts of a run, 50 a page, by filters that stand in the fragment.

import { apiPath, get, isReport, withQuery } from "./api.js";
import { button, el, replace } from "./dom.js";
import { filterForm, filtersOf } from "./filters.js";
import { formatCount, plural } from "./format.js";
import { openRun } from "./live.js";
import { indexProgress } from "./run_page.js";
import { rolloutTable } from "./rollout_rows.js";
import { replacePage, runLink } from "./router.js";

const COUNT_EVERY_MS = 2000;

export async function showRollouts(page) {
  await openRun(page);
  const filters = filtersOf(page.route.query);
  const after = page.route.query.get("after");
  const answer = await get(
    withQuery(apiPath(page.route.run, "rollouts"), { ...filters, after }),
    page.signal,
  );
  const newer = el("span", { class: "newer" });
  const focused = document.activeElement?.name;
  page.show(
    isReport ? null : filterForm(filters, answer.choices, (changed) => showFiltered(page.route.run, changed)),
    indexProgress(answer.indexed),
    el(
      "div",
      { class: "list-head" },
      el("span", {}, countText(answer.total, filters)),
      newer,
      pageLinks(page.route.run, filters, after, answer.next),
    ),
    rolloutTable(page.route.run, answer.rows),
    el("div", { class: "list-head" }, pageLinks(page.route.run, filters, after, answer.next)),
  );
  document.querySelector(`form [name="${CSS.escape(focused ?? "")}"]`)?.focus();
  return { onRun: countNewer(page, filters, answer.newest, newer) };
}

function countText(total, filters) {
  const isWhole = Object.keys(filters).every((name) => name === "sort" || name === "stream");
  return isWhole ? `${plural(total, "rollout")} in all` : `those that match, of ${plural(total, "rollout")}`;
}

function showFiltered(run, filters) {
  replacePage(withQuery(runLink(run, "rollouts"), filters));
}

function pageLinks(run, filters, after, next) {
  const to = (cursor) => withQuery(runLink(run, "rollouts"), { ...filters, after: cursor });
  return el(
    "nav",
    { "aria-label": "pages of the list" },
    after === null ? null : el("a", { href: to(null), data: { first: "" } }, "first page"),
    next === null
      ? null
      : el("a", { href: to(next), data: { older: "" } }, filters.sort === "newest" ? "older" : "next 50"),
  );
}

/** Asks from time to time how many rollouts are newer than the list, which does not move by itself. */
function countNewer(page, filters, since, place) {
  let askedAt = 0;
  return async () => {
    if (performance.now() - askedAt < COUNT_EVERY_MS) {
      return;
    }
    askedAt = performance.now();
    const path = withQuery(apiPath(page.route.run, "rollouts", "count"), {
      stream: filters.stream ?? "train",
      since: since ?? -1,
    });
    const counted = await get(path, page.signal).catch(() => ({ new: 0 }));
    if (counted.new > 0) {
      replace(place, newerButton(page, filters, counted.new));
    }
  };
}

function newerButton(page, filters, count) {
  const fragment = withQuery(runLink(page.route.run, "rollouts"), filters);
  return button(`${formatCount(count)} newer`, () => replacePage(fragment), { data: { newer: "" } });
}
