// One group: its members side by side, and what became of it.

import { apiPath, get } from "./api.js";
import { promptText } from "./completion.js";
import { alertBox, button, el, facts, replace, section } from "./dom.js";
import { NOT_RECORDED, formatCount, formatNumber, formatTime, versionText } from "./format.js";
import { movesBetween } from "./keys.js";
import { openRun } from "./live.js";
import { expectedText, outcomeText, recordedText, statusText, weightsText } from "./rollout_rows.js";
import { rolloutLink, runLink } from "./router.js";
import { sampleNodes } from "./text.js";

const MOST_REWARDS = 4; // different ones that are told
const QUICKLY_READ_BYTES = 1e8;

export async function showGroup(page) {
  const { indexed } = await openRun(page);
  const { run } = page.route;
  const group = await get(apiPath(run, "groups", page.route.rest[0]), page.signal);
  const story = el("div", { data: { story: "" } });
  const members = group.members.toSorted(
    (a, b) => a.reward - b.reward || a.id.localeCompare(b.id, "en", { numeric: true }),
  );
  const largest = Math.max(...group.members.map((member) => Math.abs(member.advantage ?? 0)));
  page.show(
    groupHead(run, group),
    el(
      "div",
      { class: "prompt" },
      el("p", { class: "faint" }, "prompt"),
      promptText(group),
    ),
    el(
      "div",
      { class: "members" },
      members.map((member) => memberCard(run, member, largest)),
    ),
    section("What happened", story),
  );
  if (indexed.of_bytes < QUICKLY_READ_BYTES) {
    tellStory(page, story);
  } else {
    replace(story, button("read the records", () => tellStory(page, story)));
  }
  const link = (id) => (id === null ? null : runLink(run, "groups", id));
  movesBetween(page, link(group.previous), link(group.next));
}

/** The records are read for it, which may take a while. */
async function tellStory(page, place) {
  replace(place, "…");
  try {
    const { lines } = await get(apiPath(page.route.run, "groups", page.route.rest[0], "story"), page.signal);
    replace(place, lines === null ? "not in this file" : el("pre", { class: "story" }, lines.join("\n")));
  } catch (error) {
    replace(place, error.name === "AbortError" ? null : alertBox(error.message));
  }
}

function groupHead(run, group) {
  const moves = el(
    "nav",
    { class: "moves", "aria-label": "neighbours" },
    group.previous === null
      ? null
      : el(
          "a",
          { href: runLink(run, "groups", group.previous), data: { previous: "" }, title: "key k" },
          "‹ previous",
        ),
    group.next === null
      ? null
      : el("a", { href: runLink(run, "groups", group.next), data: { next: "" }, title: "key j" }, "next ›"),
  );
  const undone = group.undone;
  return el(
    "section",
    {},
    el("div", { class: "title-line" }, el("h1", {}, "Group ", String(group.id)), moves),
    el("p", { class: "learnt", data: { verdict: "" } }, verdict(group)),
    facts([
      ["outcome", outcomeText(group)],
      ["domain", group.members[0]?.domain],
      ["problem", group.problem],
      ["draw of the sampler", group.draw],
      ["members", formatCount(group.members.length)],
      ["began", formatTime(group.started_at)],
      ["version live then", versionText(group.version)],
      [
        "undone",
        undone.length === 0
          ? null
          : `trained before, in ${undone.map(versionText).join(", ")}, which the resumed run did again`,
      ],
    ]),
    group.reason_means ? el("p", { class: "faint" }, group.reason_means) : null,
  );
}

/** How many members have which reward, and what was expected. */
function verdict(group) {
  const counts = new Map();
  const failed = group.members.filter(({ status }) => status.startsWith("failed")).length;
  const judged = group.members.filter(({ status }) => !status.startsWith("failed"));
  judged.forEach(({ reward }) => counts.set(reward, (counts.get(reward) ?? 0) + 1));
  const rewards = [...counts].sort(([a], [b]) => b - a).slice(0, MOST_REWARDS);
  const others = counts.size > rewards.length ? ", ..." : "";
  const told = rewards.map(([reward, count]) => `${count} × reward ${formatNumber(reward)}`).join(", ");
  const expected = expectedText({ expected: group.expected, why: group.members[0]?.why });
  const all = [`${told}${others}`, failed > 0 ? `${failed} failed` : ""].filter((text) => text !== "");
  return [`${all.join(", ") || "no rollout is recorded yet"}; expected `, expected];
}

function memberCard(run, member, largest) {
  return el(
    "article",
    { class: "member", data: { rollout: member.r } },
    el("header", {}, el("a", { href: rolloutLink(run, member.r) }, member.id), statusText(member.status)),
    el(
      "p",
      { class: "score" },
      el("span", {}, "reward ", el("b", {}, formatNumber(member.reward))),
      el("span", {}, "advantage ", el("b", {}, formatNumber(member.advantage))),
    ),
    el("p", { class: "why" }, recordedText(member.why)),
    advantageBar(member.advantage, largest),
    el(
      "div",
      { class: "sample" },
      member.text === null
        ? el("span", { class: "faint" }, member.why_no_text ?? "no text")
        : sampleNodes(member.text),
      member.is_cut ? el("span", { class: "faint" }, " … cut here") : null,
    ),
    el(
      "footer",
      { class: "faint" },
      `${formatCount(member.tokens)} tokens `,
      weightsText(member.versions),
      ` lag ${member.lag > 0 ? `≤ ${member.lag}` : (member.lag ?? NOT_RECORDED)}`,
    ),
  );
}

/** To the right what is better than the group, to the left what is worse. */
function advantageBar(advantage, largest) {
  const bar = el("span", { class: advantage < 0 ? "worse" : "better" });
  const share = largest > 0 ? (Math.abs(advantage ?? 0) / largest) * 50 : 0;
  bar.style.width = `${share}%`;
  bar.style[advantage < 0 ? "right" : "left"] = "50%";
  return el("div", { class: "advantage-bar", "aria-hidden": "true" }, bar);
}
