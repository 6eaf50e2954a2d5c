"""Writes a run as a trace: the requests on its servers, and the spans of its processes.

    python -m extensions.viewer.trace runs/latest --out trace.json.gz --versions 20 40

Open the file in Perfetto (https://ui.perfetto.dev), which does not upload it. A request is a slice with the
name of its rollout. The slices below it are the weight versions that sampled its tokens, by number of tokens.
Without --versions, the trace is of the whole run.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from contracts.records import Completion, Resumed, Rollout, VersionSpan, WeightsPublished
from contracts.support.command_line import command_parser
from extensions.viewer.span_files import PLACES, SpanFiles
from extensions.viewer.trace_file import Counter, Instant, write_trace
from extensions.viewer.tracks import Slice, Track, nested, rows
from pipelinerl.config import DamagedConfigError
from pipelinerl.streams import StreamError, Streams
from pipelinerl.streams.events import recorded, recorded_events
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.streams.run_directory import InvalidInputError, check_run

SUFFIX = ".json.gz"
MOST = 200_000  # requests, which fit a browser's memory
VERSIONS = 4  # default length of a trace, if its last version is not given
NO_SERVER = "no server"  # of a rollout that had no response


class Request(NamedTuple):
    """A request of a training rollout. `spans`: the versions that sampled its `tokens`."""

    server: str
    began: float
    ended: float
    name: str
    facts: dict[str, object]
    tokens: int = 0
    spans: tuple[VersionSpan, ...] = ()


class Period(NamedTuple):
    """Times in unix seconds."""

    began: float
    ended: float

    def touches(self, began: float, ended: float) -> bool:
        return ended > self.began and began < self.ended


def write_trace_of(streams: Streams, run_dir: Path, out: Path, first: int | None, last: int | None) -> str:
    """Writes the trace, and returns a summary sentence. Raises InvalidInputError, StreamError or OSError."""
    live = published_versions(streams)
    period = Period(0.0, float("inf"))
    if first is not None:
        first, last = window(live, first, last)
        period = Period(live[first].at, live[last].at)
    requests = deque(requests_of(streams, period), maxlen=MOST)
    span_files = SpanFiles(run_dir)
    span_files.update()
    spans = span_files.between(period.began, period.ended)
    instants = [
        Instant(f"version {version} is live", event.at)
        for version, event in live.items()
        if period.began <= event.at <= period.ended
    ]
    times = [*(request.began for request in requests), *(event.at for event in instants)]
    times += [slice_.began for slices in spans.values() for slice_ in slices]
    if not times:
        raise InvalidInputError(f"{run_dir} has recorded nothing that takes time yet")
    tracks = [*tracks_of_spans(spans), *tracks_of_requests(requests)]
    slices = write_trace(out, tracks, counters_of(spans), instants, min(times))
    last_ones = f", the last {MOST:,}" if len(requests) == MOST else ""
    return f"trace in {out}: {len(requests):,} requests{last_ones}, {slices:,} slices"


def published_versions(streams: Streams) -> dict[int, WeightsPublished]:
    """Returns the last publication of each version, without the versions that a resumption has undone."""
    live: dict[int, WeightsPublished] = {}
    for event in recorded_events(streams, ("trainer_events",)):
        if isinstance(event, Resumed):
            live = {version: published for version, published in live.items() if version <= event.version}
        elif isinstance(event, WeightsPublished):
            live[event.version] = event
    return live


def window(live: dict[int, WeightsPublished], first: int, last: int | None) -> tuple[int, int]:
    """Returns the first and last version of the trace; `last` is by default VERSIONS after `first`.

    Raises InvalidInputError if they were not published, or not in this order.
    """
    if not live:
        raise InvalidInputError("the run has published no weights yet")
    newest = max(live)
    last = min(first + VERSIONS, newest) if last is None else last
    if first not in live or last not in live or first >= last:
        raise InvalidInputError(
            f"there is no time from version {first} to {last}: {min(live)} to {newest} were published"
        )
    return first, last


def requests_of(streams: Streams, period: Period) -> Iterator[Request]:
    """Yields the requests of training rollouts, and one for each rollout without a response."""
    for rollout in recorded(streams, "rollouts"):
        if rollout.completions:
            yield from (
                _request(rollout, completion)
                for completion in rollout.completions
                if period.touches(completion.began, completion.ended)
            )
        elif period.touches(rollout.started_at, rollout.finished_at):
            yield Request(
                NO_SERVER, rollout.started_at, rollout.finished_at, rollout.rollout_id, _facts(rollout)
            )


def _request(rollout: Rollout, completion: Completion) -> Request:
    facts = _facts(rollout) | {"finish_reason": completion.finish_reason}
    tokens = len(completion.token_ids)
    times = completion.began, completion.ended
    return Request(
        completion.server, *times, rollout.rollout_id, facts, tokens, spans=tuple(completion.spans)
    )


def _facts(rollout: Rollout) -> dict[str, object]:
    return {
        "group": rollout.group_id,
        "problem": f"{rollout.domain} {rollout.problem_id}",
        "status": rollout.status,
        "reward": rollout.reward,
        "sampled_tokens": rollout.sampled_tokens,
    }


def tracks_of_requests(requests: Iterable[Request]) -> Iterator[Track]:
    """Yields tracks, each of one server, without overlaps."""
    for number, row in enumerate(rows(requests), start=1):
        slices = [slice_ for request in row for slice_ in _slices(request)]
        yield Track(row[0].server, f"request {number}", slices)


def _slices(request: Request) -> Iterator[Slice]:
    """Yields the request's slice, and the slices of its versions."""
    yield Slice(request.name, request.began, request.ended, request.facts)
    token_s = (request.ended - request.began) / max(request.tokens, 1)
    for span in request.spans:
        began = request.began + span.start * token_s
        ended = min(request.began + span.end * token_s, request.ended)
        yield Slice(f"version {span.version}", began, ended, {"tokens": span.end - span.start})


def tracks_of_spans(spans: dict[str, list[Slice]]) -> Iterator[Track]:
    for process, slices in spans.items():
        yield from nested(process, (slice_ for slice_ in slices if slice_.name != PLACES))


def counters_of(spans: dict[str, list[Slice]]) -> Iterator[Counter]:
    """Yields the means of each second: the number of places for requests, and how many were in use."""
    for process, slices in spans.items():
        for slice_ in slices:
            if slice_.name == PLACES:
                numbers = {name: value for name, value in slice_.facts.items() if isinstance(value, float)}
                yield Counter(process, PLACES, slice_.began, numbers)


def main() -> int:
    """Writes the trace that the command line asks for, and returns the exit status."""
    parser = command_parser("extensions.viewer.trace", __doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True, help=f"the trace, whose name ends in {SUFFIX}")
    parser.add_argument("--versions", type=int, nargs=2, default=(None, None), metavar=("FIRST", "LAST"))
    arguments = parser.parse_args()
    if not arguments.out.name.endswith(SUFFIX):
        parser.error(f"--out {arguments.out}: the name of a trace ends in {SUFFIX}")
    try:
        check_run(arguments.run_dir)
        with recorded_streams(arguments.run_dir) as streams:
            print(write_trace_of(streams, arguments.run_dir, arguments.out, *arguments.versions))
    except (InvalidInputError, DamagedConfigError, StreamError, OSError) as error:
        print(f"extensions.viewer.trace: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
