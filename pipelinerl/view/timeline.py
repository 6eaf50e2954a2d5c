"""A picture of a run: each request is a bar, coloured by the weights that sampled its tokens.

    python -m pipelinerl.view.timeline runs/latest --out timeline.svg --versions 20 26

A vertical line stands where a version went live on the servers. Bars show requests of training rollouts; a
row holds one request at a time. The format follows from the name: svg, png or pdf.
"""

import argparse
import sys
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from contracts.records import Completion, Rollout, WeightsPublished
from pipelinerl.config import DamagedConfigError
from pipelinerl.streams import StreamError, Streams
from pipelinerl.streams.events import recorded
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.streams.run_directory import InvalidInputError, check_run

SHOWN = 6  # versions in the middle of the run, unless the command names others


class Timeline(NamedTuple):
    """What happened between the publications of two versions. Times are unix seconds."""

    began: float
    ended: float
    live: dict[int, float]  # when a version went live
    rows: list[list[Completion]]  # requests that do not overlap, server by server


def read_timeline(streams: Streams, first: int | None = None, last: int | None = None) -> Timeline:
    """Returns the time between the publications of version `first` and version `last`.

    Raises InvalidInputError if the run has recorded no such time.
    """
    events = recorded(streams, "trainer_events")
    live = {event.version: event.at for event in events if isinstance(event, WeightsPublished)}
    versions = sorted(live)
    middle = len(versions) // 2
    first = versions[max(middle - SHOWN // 2, 0)] if first is None and versions else first
    last = min(first + SHOWN, versions[-1]) if last is None and versions else last
    if first not in live or last not in live or live[first] >= live[last]:
        known = f"from {versions[0]} to {versions[-1]}" if versions else "none"
        raise InvalidInputError(f"there is no time between versions {first} and {last}; published: {known}")
    began, ended = live[first], live[last]
    completions = (c for rollout in recorded(streams, "rollouts") for c in _completions(rollout))
    shown = [c for c in completions if c.ended > began and c.began < ended]
    return Timeline(began, ended, {v: at for v, at in live.items() if began <= at <= ended}, rows(shown))


def _completions(record: object) -> list[Completion]:
    return record.completions if isinstance(record, Rollout) else []


def rows(completions: Iterable[Completion]) -> list[list[Completion]]:
    """Returns the requests in rows, each the first one that is free. Servers share no row."""
    found: list[list[Completion]] = []
    ordered = sorted(completions, key=lambda c: (c.server, c.began))
    for _, of_server in groupby(ordered, key=lambda c: c.server):
        offset = len(found)
        free: list[tuple[float, int]] = []  # when its last request ended, and the row
        for completion in of_server:
            if free and free[0][0] <= completion.began:
                _, row = heappop(free)
            else:
                row = len(found)
                found.append([])
            found[row].append(completion)
            heappush(free, (completion.ended, row))
        assert offset < len(found)
    return found


def main() -> int:
    """Draws the picture that the command line asks for, and returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m pipelinerl.view.timeline", description=__doc__.splitlines()[0]
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the picture: .svg, .png or .pdf")
    parser.add_argument("--versions", type=int, nargs=2, default=(None, None), metavar=("FIRST", "LAST"))
    arguments = parser.parse_args()
    try:
        check_run(arguments.run_dir)
        with recorded_streams(arguments.run_dir) as streams:
            timeline = read_timeline(streams, *arguments.versions)
        from pipelinerl.view.timeline_plot import draw_timeline  # takes a second to import

        draw_timeline(arguments.out, timeline)
    except (InvalidInputError, DamagedConfigError, StreamError, OSError) as error:
        print(f"pipelinerl.view.timeline: {error}", file=sys.stderr)
        return 1
    print(f"timeline in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
