"""Writes a trace of a run: its requests on each server, and the spans of each process.

    python -m extensions.viewer.trace runs/latest --out trace.json.gz --versions 20 40

Open the file in Perfetto (https://ui.perfetto.dev), which keeps it in your browser. A request is a slice with
the name of its rollout. Nested slices show the weight versions, as if tokens were evenly spaced. Without
--versions, the trace covers the whole run.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from contracts.records import Completion, Rollout, VersionSpan
from contracts.support.command_line import command_parser
from extensions.viewer.publications import published_versions, window
from extensions.viewer.span_files import PLACES, SpanFiles
from extensions.viewer.trace_file import Counter, Instant, write_trace
from extensions.viewer.tracks import Slice, Track, nested, rows
from pipelinerl.errors import PlanError
from pipelinerl.streams import StreamError, Streams
from pipelinerl.streams.events import recorded
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.streams.run_directory import InvalidInputError, check_run

SUFFIX = ".json.gz"
MOST = 200_000  # most requests, because of the browser's memory
NO_SERVER = "no server"  # for rollouts without a response


class Request(NamedTuple):
    """A request of a training rollout. spans: ranges of its tokens by weight version."""

    server: str
    began: float
    ended: float
    name: str
    facts: dict[str, object]
    tokens: int = 0
    spans: tuple[VersionSpan, ...] = ()


class Period(NamedTuple):
    """An interval in unix seconds."""

    began: float
    ended: float

    def touches(self, began: float, ended: float) -> bool:
        return ended > self.began and began < self.ended


def write_trace_of(streams: Streams, run_dir: Path, out: Path, first: int | None, last: int | None) -> str:
    """Writes the trace and returns a message about it. Raises InvalidInputError, StreamError or OSError."""
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


def requests_of(streams: Streams, period: Period) -> Iterator[Request]:
    """Yields the requests of training rollouts in the period, and one for each rollout without a response."""
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
    """Yields tracks of requests that do not overlap. A track has requests of one server."""
    for number, row in enumerate(rows(requests), start=1):
        slices = [slice_ for request in row for slice_ in _slices(request)]
        yield Track(row[0].server, f"request {number}", slices)


def _slices(request: Request) -> Iterator[Slice]:
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
    """Yields the mean numbers of request slots, available and in use, for each second."""
    for process, slices in spans.items():
        for slice_ in slices:
            if slice_.name == PLACES:
                numbers = {name: value for name, value in slice_.facts.items() if isinstance(value, float)}
                yield Counter(process, PLACES, slice_.began, numbers)


def main() -> int:
    """Runs the command and returns its exit status."""
    parser = command_parser("extensions.viewer.trace", __doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--out", type=Path, required=True, help=f"output file; must end in {SUFFIX}")
    parser.add_argument("--versions", type=int, nargs=2, default=(None, None), metavar=("FIRST", "LAST"))
    arguments = parser.parse_args()
    if not arguments.out.name.endswith(SUFFIX):
        parser.error(f"--out {arguments.out}: the name of a trace ends in {SUFFIX}")
    try:
        check_run(arguments.run_dir)
        with recorded_streams(arguments.run_dir) as streams:
            print(write_trace_of(streams, arguments.run_dir, arguments.out, *arguments.versions))
    except (InvalidInputError, PlanError, StreamError, OSError) as error:
        print(f"extensions.viewer.trace: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
