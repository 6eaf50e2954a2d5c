// The form that chooses rollouts. Its state is the query of the fragment.

import { button, el } from "./dom.js";
import { plainText } from "./text.js";

const SORTS = ["mixed first", "newest", "longest", "shortest", "worst", "best"];
const FILTER_NAMES = [
  "stream",
  "version_from",
  "version_to",
  "domain",
  "status",
  "outcome",
  "reward_from",
  "reward_to",
  "length_from",
  "length_to",
  "mixed",
  "sort",
];
const WIDE = "(min-width: 700px)"; // narrower, the form is folded until it is asked for
const PRESET = { stream: "train" };
const SORT_OF = { train: "mixed first", "held-out": "newest" }; // the server's defaults

/** The filters that differ from those of a list without any. */
export function filtersOf(query) {
  const preset = presetOf(query.get("stream"));
  const set = FILTER_NAMES.map((name) => [name, query.get(name)]);
  return Object.fromEntries(
    set.filter(([name, value]) => value !== null && value !== "" && value !== preset[name]),
  );
}

function presetOf(stream) {
  return { ...PRESET, sort: SORT_OF[stream ?? PRESET.stream] };
}

export function filterForm(filters, choices, change) {
  const form = el(
    "form",
    { class: "filters", "aria-label": "filters" },
    choiceField("rollouts of", "stream", ["train", "held-out"], filters),
    rangeField("versions", "version", filters, 1),
    choiceField("domain", "domain", choices.domain, filters, "any"),
    choiceField("status", "status", choices.status, filters, "any"),
    choiceField("outcome", "outcome", choices.outcome, filters, "any"),
    rangeField("reward", "reward", filters, "any"),
    rangeField("length", "length", filters, 1),
    el(
      "label",
      { class: "check", title: "only groups whose members have different rewards" },
      el("input", { type: "checkbox", name: "mixed", value: "1", checked: filters.mixed === "1" }),
      "mixed groups only",
    ),
    choiceField("order", "sort", SORTS, filters),
    Object.keys(filters).length > 0 ? button("no filters", () => change({}), { class: "quiet" }) : null,
  );
  form.addEventListener("change", () => change(filtersOf(new URLSearchParams(new FormData(form)))));
  form.addEventListener("submit", (event) => event.preventDefault());
  const isOpen = Object.keys(filters).length > 0 || matchMedia(WIDE).matches;
  return el("details", { class: "filter-fold", open: isOpen }, el("summary", {}, "filters and order"), form);
}

function choiceField(title, name, values, filters, any) {
  const chosen = filters[name] ?? presetOf(filters.stream)[name] ?? "";
  const known = chosen === "" || values.includes(chosen) ? values : [...values, chosen];
  const options = known.map((value) => el("option", { selected: value === chosen }, plainText(value)));
  options.forEach((option, index) => {
    option.value = known[index];
  });
  const unset = any === undefined ? null : el("option", { value: "" }, any);
  return el("label", {}, el("span", {}, title), el("select", { name }, unset, options));
}

function rangeField(title, name, filters, step) {
  const field = (end) => {
    const key = `${name}_${end}`;
    return el("input", {
      type: "number",
      name: key,
      step,
      value: filters[key],
      "aria-label": `${title} ${end}`,
    });
  };
  return el(
    "label",
    {},
    el("span", {}, title),
    el("span", { class: "range" }, field("from"), "to", field("to")),
  );
}
