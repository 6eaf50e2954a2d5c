"""Builds the timeline of a run: requests on each server by weight version, and spans of each process."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from sqlite3 import Row
from typing import NamedTuple, TypeVar

from contracts.records import WeightsPublished
from extensions.viewer.answers.overview import Answer
from extensions.viewer.answers.rollouts import link_of
from extensions.viewer.index.loads import MINUTE
from extensions.viewer.index.queries import Queries
from extensions.viewer.index.slim import SlimCompletion
from extensions.viewer.runs.opened import OpenRun
from extensions.viewer.span_files import PLACES
from extensions.viewer.tracks import Slice, Track, nested, rows

MOST = 4000  # rollouts whose requests are shown each by itself; those of more are merged
BINS = 400  # most columns of merged requests
SHORTEST_S = 0.05  # half of the shortest default window, if more than MOST rollouts run at once
LATEST = 2.0**40  # unix seconds
RECENT = 500  # last rollouts among which an update is looked for that requests cross
DURATIONS = 3  # of such a rollout, that the default window has before the update and after it
VERSIONS = 4  # length of the default window if no request crosses an update
OVERVIEW = 2000  # most publications on the axis of the whole run
Updates = Mapping[int, WeightsPublished]  # by version
Of = TypeVar("Of")


class Bar(NamedTuple):
    """A request on a server."""

    server: str
    began: float
    ended: float
    completion: SlimCompletion
    facts: Answer


def timeline(run: OpenRun, began: float | None, ended: float | None) -> Answer:
    """Returns the timeline between two unix times, by default around the last update that requests cross."""
    with run.lock:
        updates = dict(run.following.state.published)
        run_began = run.following.state.began_at
        names = {server.joined.url: server.joined.name for server in run.following.state.servers}
    published = list(updates.values())
    queries = run.queries
    if began is None or ended is None:
        began, ended = _around_update(updates, queries) or _last_versions(published, queries)
    began = min(max(began, 0.0), LATEST)
    ended = min(max(ended, began), LATEST)
    with run.lock:
        spans = run.following.spans.between(began, ended)
    is_merged = queries.has_more_between(began, ended, MOST)
    of_servers: Iterable[Answer]
    if is_merged:
        of_servers = _merged(queries, names, began, ended)
    else:
        found = _bars(run, queries.finished_between(began, ended, MOST))
        bars = [bar for bar in found if bar.ended > began and bar.began < ended]
        of_servers = _servers(bars, names, updates)
    every = len(published) // OVERVIEW + 1
    return {
        "began": began,
        "ended": ended,
        "run_began": run_began or began,
        "run_ended": published[-1].at if published else None,
        "published": [_publication(event) for event in _in_window(published, began, ended)],
        "versions": [[event.version, event.at] for event in published[::every]],
        "tracks": [*of_servers, *_processes(spans)],
        "is_merged": is_merged,
    }


def _around_update(updates: Updates, queries: Queries) -> tuple[float, float] | None:
    """Returns a window around the newest update that many requests cross, or None without one."""
    found = [row for row in queries.crossings(RECENT) if row["version"] in updates]
    many = max((row["rollouts"] for row in found), default=0) / 2
    row = next((row for row in found if row["rollouts"] >= many), None)
    if row is None:
        return None
    update = updates[row["version"]]
    half = DURATIONS * max(row["seconds"], update.seconds, 0.01)
    while half > SHORTEST_S and queries.has_more_between(update.at - half, update.at + half, MOST):
        half /= 2
    return update.at - half, update.at + half


def _last_versions(published: Sequence[WeightsPublished], queries: Queries) -> tuple[float, float]:
    """Returns a window with the last versions: up to VERSIONS that fit into one answer, and at least one."""
    if not published:
        return 0.0, 0.0
    for count in range(VERSIONS, 0, -1):
        last = published[-count - 1 :]
        began = last[0].at
        ended = max(last[-1].at, began + 1.0)
        if not queries.has_more_between(began, ended, MOST):
            break
    return began, ended


def _in_window(
    published: Sequence[WeightsPublished], began: float, ended: float
) -> Iterator[WeightsPublished]:
    """Yields the last publication before the window, then those within it."""
    before = [event for event in published if event.at < began]
    yield from before[-1:]
    yield from (event for event in published if began <= event.at <= ended)


def _publication(event: WeightsPublished) -> Answer:
    return {
        "version": event.version,
        "at": event.at,
        "seconds": event.seconds,
        "paused_s": event.paused_s,
    }


def _bars(run: OpenRun, found: Sequence[Row]) -> Iterator[Bar]:
    """Yields the requests of these rollouts. Skips rollouts whose records were deleted."""
    by_offset = {row["offset"]: row for row in found}
    for offset, rollout in run.slim_rollouts(by_offset):
        row = by_offset[offset]
        facts = {"r": link_of(False, offset), "id": row["rollout_id"], "status": row["status"]}
        for completion in rollout.completions:
            yield Bar(completion.server, completion.began, completion.ended, completion, facts)


def _merged(queries: Queries, names: Mapping[str, str], began: float, ended: float) -> Iterator[Answer]:
    """Yields for each server how many requests it had at a time, by version, in bins of equal width."""
    width = max(math.ceil((ended - began) / BINS), 1)
    width = width if width < MINUTE else MINUTE * math.ceil(width / MINUTE)
    by_server: dict[str, dict[int, list[tuple[int, float]]]] = {}
    for url, second, version, busy_s in queries.loads_between(began, ended, width):
        by_server.setdefault(url, {}).setdefault(second, []).append((version, busy_s / width))
    for name, bins in _by_name(by_server, names):
        yield {"process": name, "kind": "load", "rows": [], "width": width, "bins": sorted(bins.items())}


def _servers(bars: list[Bar], names: Mapping[str, str], updates: Updates) -> Iterator[Answer]:
    by_server: dict[str, list[list[Answer]]] = {}
    for row in rows(bars):
        by_server.setdefault(row[0].server, []).append([_bar(bar, updates) for bar in row])
    for name, of_server in _by_name(by_server, names):
        yield {"process": name, "kind": "server", "rows": of_server}


def _by_name(by_url: Mapping[str, Of], names: Mapping[str, str]) -> list[tuple[str, Of]]:
    """Returns the values with the names of the servers, server-9 before server-10."""
    named = [(names.get(url, url), of_server) for url, of_server in by_url.items()]
    return sorted(named, key=lambda pair: (len(pair[0]), pair[0]))


def _bar(bar: Bar, updates: Updates) -> Answer:
    versions = list(_versions(bar, updates))
    return bar.facts | {"t": bar.began, "e": bar.ended, "v": versions, "tokens": bar.completion.tokens}


def _versions(bar: Bar, updates: Updates) -> Iterator[tuple[int, float, float]]:
    """Yields (version, begin, end) for each version that sampled the request, as shares of its duration.

    Assumes that tokens are evenly spaced, except that a version begins during its publication.
    """
    spans = [span for span in bar.completion.spans if span.end > span.start]
    begins: list[float] = []
    before = -1
    for span in spans:
        begin = span.start / bar.completion.tokens
        if span.version > before and span.version in updates:
            begin = _within(begin, bar, updates[span.version])
        begins.append(max([begin, *begins[-1:]]))
        before = span.version
    for span, begin, end in zip(spans, begins, [*begins, 1.0][1:], strict=True):
        yield span.version, begin, end


def _within(share: float, bar: Bar, update: WeightsPublished) -> float:
    """Clamps a share of the request's duration to the interval in which the version was published.

    Servers that pull weights load them later, at a time that is not recorded. The share then stays as it is.
    """
    if update.live is not None:
        return share
    began = max(update.at - update.seconds, bar.began)
    ended = min(update.at, bar.ended)
    if began >= ended:
        return share
    at = bar.began + share * (bar.ended - bar.began)
    return (min(max(at, began), ended) - bar.began) / (bar.ended - bar.began)


def _processes(spans: dict[str, list[Slice]]) -> Iterator[Answer]:
    for process, slices in spans.items():
        timed = [slice_ for slice_ in slices if slice_.name != PLACES]
        for track in nested(process, timed):
            yield {"process": track.name, "kind": "process", "rows": [_nested(track)]}


def _nested(track: Track) -> list[Answer]:
    found = []
    around: list[float] = []  # ends of the slices that have not ended
    for slice_ in track.slices:
        while around and around[-1] <= slice_.began:
            around.pop()
        found.append(
            {"t": slice_.began, "e": slice_.ended, "n": slice_.name, "depth": len(around), "f": slice_.facts}
        )
        around.append(slice_.ended)
    return found
