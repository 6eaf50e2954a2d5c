// Routes are in the fragment: #/r/NAME/rollouts/train/17?colour=lag

const RUN_PAGES = {
  timeline: "timeline",
  servers: "servers",
  rollouts: "rollouts",
  groups: "groups",
  files: "files",
};

/** A part of a path or a fragment, percent-encoded; half of a surrogate pair becomes U+FFFD. */
export function wellFormed(text) {
  return encodeURIComponent(text.toWellFormed());
}

export function runLink(run, ...parts) {
  return "#/" + ["r", run, ...parts].map((part) => wellFormed(String(part))).join("/");
}

/** A rollout is named "train/12345" or "held-out/12345". */
export function rolloutLink(run, rollout) {
  return runLink(run, "rollouts", ...rollout.split("/"));
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function pageOf([section, ...rest]) {
  if (section === undefined) {
    return "run";
  }
  if (section === "rollouts" && rest.length === 2) {
    return "reader";
  }
  if (section === "groups" && rest.length === 1) {
    return "group";
  }
  return rest.length === 0 || section === "files" ? RUN_PAGES[section] : undefined;
}

/** What a fragment asks for: {page, run, rest, query, path}; page is undefined where there is no such page. */
export function parseRoute(fragment) {
  const [path, query = ""] = fragment.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const parts = path
    .split("/")
    .filter((part) => part !== "")
    .map(decoded);
  const route = { path, run: null, rest: [], query: new URLSearchParams(query) };
  if (parts.length === 0) {
    return { ...route, page: "runs" };
  }
  if (parts.length === 1 && parts[0] === "compare") {
    return { ...route, page: "compare" };
  }
  if (parts[0] !== "r" || parts.length < 2) {
    return { ...route, page: undefined };
  }
  const [, run, ...rest] = parts;
  return { ...route, page: pageOf(rest), run, rest: rest.slice(1) };
}

/** Where Escape leads when nothing of these pages came before. */
export function parentLink(route) {
  if (route.page === "reader" || route.page === "group") {
    return runLink(route.run, route.page === "reader" ? "rollouts" : "groups");
  }
  if (route.page === "files" && route.rest.length > 0) {
    return runLink(route.run, "files");
  }
  return route.run === null || route.page === "run" ? "#/" : runLink(route.run);
}

/** Shows another page in place of this one, so that Back leads to what came before both. */
export function replacePage(fragment) {
  history.replaceState({ depth: history.state?.depth ?? 1 }, "", fragment);
  window.dispatchEvent(new Event("hashchange"));
}

/** Shows another page from which Escape does not lead back, but further up. */
export function addPage(fragment) {
  history.pushState({ depth: 1 }, "", fragment);
  window.dispatchEvent(new Event("hashchange"));
}
