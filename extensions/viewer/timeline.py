"""Draws a run as a picture: each request is a bar, coloured by the weights that sampled its tokens.

    python -m extensions.viewer.timeline runs/latest --out timeline.svg --versions 20 24

A grey band shows when new weights travelled, and the line at its end when every server had them. Bars show
requests of training rollouts; a row holds one request at a time. The format follows from the file's name.
"""

import sys
from pathlib import Path
from typing import NamedTuple

from contracts.records import Completion, Resumed, WeightsPublished
from contracts.support.command_line import command_parser
from extensions.viewer.tracks import rows
from pipelinerl.config import DamagedConfigError
from pipelinerl.streams import StreamError, Streams
from pipelinerl.streams.events import recorded, recorded_events
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.streams.run_directory import InvalidInputError, check_run

FORMATS = (".svg", ".png", ".pdf")
VERSIONS = 4  # in the middle of the run, unless the command names others
ROWS = 16  # of the picture, unless the command says otherwise


class Timeline(NamedTuple):
    """What happened between the publications of two versions. Times are unix seconds."""

    began: float
    ended: float
    published: list[WeightsPublished]
    rows: list[list[Completion]]  # requests that do not overlap, server by server


def read_timeline(streams: Streams, first: int | None = None, last: int | None = None) -> Timeline:
    """Returns the time between the publications of version `first` and version `last`.

    Raises InvalidInputError if the run has recorded no such time.
    """
    live = published_versions(streams)
    first, last = window(live, first, last)
    began = live[first].at
    ended = live[last].at
    completions = (c for rollout in recorded(streams, "rollouts") for c in rollout.completions)
    shown = [c for c in completions if c.ended > began and c.began < ended]
    published = [event for event in live.values() if began <= event.at <= ended]
    return Timeline(began, ended, published, rows(shown))


def window(live: dict[int, WeightsPublished], first: int | None, last: int | None) -> tuple[int, int]:
    """Returns the versions between which a timeline lies, by default some in the middle of the run.

    Raises InvalidInputError if they were not published, or not in this order.
    """
    if not live:
        raise InvalidInputError("the run has published no weights yet")
    newest = max(live)
    first = max((newest - VERSIONS) // 2, min(live)) if first is None else first
    last = min(first + VERSIONS, newest) if last is None else last
    if first not in live or last not in live or first >= last:
        raise InvalidInputError(
            f"there is no time from version {first} to {last}: {min(live)} to {newest} were published"
        )
    return first, last


def published_versions(streams: Streams) -> dict[int, WeightsPublished]:
    """Returns the last publication of each version, without versions that a resumption has undone."""
    live: dict[int, WeightsPublished] = {}
    for event in recorded_events(streams, ("trainer_events",)):
        if isinstance(event, Resumed):
            live = {version: published for version, published in live.items() if version <= event.version}
        elif isinstance(event, WeightsPublished):
            live[event.version] = event
    return live


def main() -> int:
    """Draws the picture that the command line asks for, and returns the exit status."""
    parser = command_parser("extensions.viewer.timeline", __doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the picture")
    parser.add_argument("--versions", type=int, nargs=2, default=(None, None), metavar=("FIRST", "LAST"))
    parser.add_argument("--rows", type=int, default=ROWS, help="requests at a time that are shown")
    arguments = parser.parse_args()
    if arguments.rows < 1:
        parser.error(f"--rows {arguments.rows}: a picture has at least one row")
    if arguments.out.suffix not in FORMATS:
        parser.error(f"--out {arguments.out}: the name of a picture ends in {', '.join(FORMATS)}")
    try:
        check_run(arguments.run_dir)
        with recorded_streams(arguments.run_dir) as streams:
            timeline = read_timeline(streams, *arguments.versions)
        from extensions.viewer.timeline_plot import draw_timeline  # takes a second to import

        draw_timeline(arguments.out, timeline, arguments.rows)
    except (InvalidInputError, DamagedConfigError, StreamError, OSError) as error:
        print(f"extensions.viewer.timeline: {error}", file=sys.stderr)
        return 1
    print(f"timeline in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
