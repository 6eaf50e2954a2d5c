"""A window of a run's time: requests on servers by weight version, and the processes' activities."""

from collections.abc import Iterator, Mapping, Sequence
from sqlite3 import Row
from typing import NamedTuple

from contracts.records import WeightsPublished
from extensions.viewer.answers.overview import Answer
from extensions.viewer.answers.rollouts import link_of
from extensions.viewer.index.queries import Queries
from extensions.viewer.index.slim import SlimCompletion
from extensions.viewer.runs.opened import OpenRun
from extensions.viewer.span_files import PLACES
from extensions.viewer.tracks import Slice, Track, nested, rows

MOST = 4000  # last requests in one answer
VERSIONS = 4  # last versions in the default window
OVERVIEW = 2000  # publications in the overview
Updates = Mapping[int, WeightsPublished]  # by version


class Bar(NamedTuple):
    """A request on a server."""

    server: str
    began: float
    ended: float
    completion: SlimCompletion
    facts: Answer


def timeline(run: OpenRun, began: float | None, ended: float | None) -> Answer:
    """Returns a window between two times in unix seconds; by default the last versions."""
    with run.lock:
        updates = dict(run.following.state.published)
        run_began = run.following.state.began_at
        names = {server.joined.url: server.joined.name for server in run.following.state.servers}
    published = list(updates.values())
    queries = run.queries
    if began is None or ended is None:
        began, ended = _last_versions(published, queries)
    with run.lock:
        spans = run.following.spans.between(began, ended)
    found = queries.finished_between(began, ended, MOST)
    bars = [bar for bar in _bars(run, found) if bar.ended > began and bar.began < ended]
    every = len(published) // OVERVIEW + 1
    return {
        "began": began,
        "ended": ended,
        "run_began": run_began or began,
        "run_ended": published[-1].at if published else None,
        "published": [_publication(event) for event in _in_window(published, began, ended)],
        "versions": [[event.version, event.at] for event in published[::every]],
        "tracks": [*_servers(bars, names, updates), *_processes(spans)],
        "shown": len(bars),
        "left_out": queries.count_between(began, ended) - len(found),
    }


def _last_versions(published: Sequence[WeightsPublished], queries: Queries) -> tuple[float, float]:
    """Returns the time of the last versions: as many as fit in one answer, at least one."""
    if not published:
        return 0.0, 0.0
    for count in range(VERSIONS, 0, -1):
        last = published[-count - 1 :]
        began = last[0].at
        ended = max(last[-1].at, began + 1.0)
        if queries.count_between(began, ended) <= MOST:
            break
    return began, ended


def _in_window(
    published: Sequence[WeightsPublished], began: float, ended: float
) -> Iterator[WeightsPublished]:
    """Yields the publications in the window, and the last one before it."""
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
    """Yields the requests of these rollouts, except deleted ones."""
    by_offset = {row["offset"]: row for row in found}
    for offset, rollout in run.slim_rollouts(by_offset):
        row = by_offset[offset]
        facts = {"r": link_of(False, offset), "id": row["rollout_id"], "status": row["status"]}
        for completion in rollout.completions:
            yield Bar(completion.server, completion.began, completion.ended, completion, facts)


def _servers(bars: list[Bar], names: dict[str, str], updates: Updates) -> Iterator[Answer]:
    by_server: dict[str, list[list[Answer]]] = {}
    for row in rows(bars):
        by_server.setdefault(row[0].server, []).append([_bar(bar, updates) for bar in row])
    named = [(names.get(url, url), of_server) for url, of_server in by_server.items()]
    named.sort(key=lambda pair: (len(pair[0]), pair[0]))  # server-9 before server-10
    for name, of_server in named:
        yield {"process": name, "kind": "server", "rows": of_server}


def _bar(bar: Bar, updates: Updates) -> Answer:
    versions = list(_versions(bar, updates))
    return bar.facts | {"t": bar.began, "e": bar.ended, "v": versions, "tokens": bar.completion.tokens}


def _versions(bar: Bar, updates: Updates) -> Iterator[tuple[int, float, float]]:
    """Yields each version that sampled the request, with its part of the request's time.

    Tokens are spread evenly over the time, but a version starts during its publication. The time before the
    first version is the wait.
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
    """Returns the nearest share of the request's time that is within the publication.

    Servers that pull weights change them later, at an unrecorded time.
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
    """Returns the slices of a track, with their nesting depths."""
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
