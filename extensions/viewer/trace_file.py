"""Writes tracks as a trace in Chrome's format, which Perfetto reads. It must not know streams or runs."""

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from contracts.support.files import replaced_atomically
from extensions.viewer.tracks import Track

MICROSECONDS = 1e6


class Counter(NamedTuple):
    """Values of a process at one time, in unix seconds, drawn as curves."""

    process: str
    name: str
    at: float
    values: dict[str, float]


class Instant(NamedTuple):
    """An event at one time, in unix seconds, that concerns every process."""

    name: str
    at: float


def write_trace(
    path: Path,
    tracks: Iterable[Track],
    counters: Iterable[Counter],
    instants: Iterable[Instant],
    begin: float,
) -> int:
    """Writes the file, compressed by gzip, and returns the number of slices. `begin`: time 0 of the trace."""
    slices = 0
    with replaced_atomically(path) as unfinished, gzip.open(unfinished, "wt") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for event in _events(tracks, counters, instants, begin):
            file.write(separator + json.dumps(event, separators=(",", ":"), allow_nan=False))
            separator = ",\n"
            slices += event["ph"] == "X"
        file.write("\n]}\n")
    return slices


def _events(
    tracks: Iterable[Track], counters: Iterable[Counter], instants: Iterable[Instant], begin: float
) -> Iterator[dict[str, object]]:
    def us(at: float) -> int:
        return round((at - begin) * MICROSECONDS)

    processes: dict[str, int] = {}

    def process(name: str) -> Iterator[dict[str, object]]:
        if name not in processes:
            processes[name] = len(processes) + 1
            yield {"ph": "M", "name": "process_name", "pid": processes[name], "args": {"name": name}}

    for thread, track in enumerate(tracks, start=1):
        yield from process(track.process)
        place = {"pid": processes[track.process], "tid": thread}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": track.name}}
        for name, began, ended, facts in track.slices:
            times = {"ts": us(began), "dur": us(ended) - us(began)}
            yield {"ph": "X", "name": name, **place, **times, "args": facts}
    for counter in counters:
        yield from process(counter.process)
        where = {"pid": processes[counter.process], "ts": us(counter.at)}
        yield {"ph": "C", "name": counter.name, **where, "args": counter.values}
    for instant in instants:
        yield {"ph": "i", "s": "g", "name": instant.name, "pid": 1, "tid": 1, "ts": us(instant.at)}
