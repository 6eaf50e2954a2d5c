"""Follows the event streams from asyncio, and reads a run's history.

Each `Resumed` in the launcher's stream starts another incarnation of the run, from a checkpoint.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence

from contracts.records import Evaluated, Record, Resumed
from pipelinerl.streams.base import StreamReader, Streams

EVENT_STREAMS = ("actor_events", "preprocessor_events", "trainer_events")
NEEDED_TO_RESUME = (*EVENT_STREAMS, "launcher_events", "rollouts", "sampler_states")
FRESH_RUN = Resumed(
    version=0,
    ends={},
    rollouts_offset=0,
    kept_offset=None,
    replayed=[],
    interrupted=[],
    rolled_back=[],
    next_group=0,
    draws=0,
    redraws=[],
)


def tail(reader: StreamReader, from_offset: int, queue: "asyncio.Queue[Record | BaseException]") -> None:
    """Starts a daemon thread that puts every record of the stream, and any error of reading, into `queue`."""
    loop = asyncio.get_running_loop()

    def put(item: Record | BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing reads the queue
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def pump() -> None:
        try:
            for entry in reader.read(from_offset):
                put(entry.record)
        except Exception as error:
            put(error)

    threading.Thread(target=pump, daemon=True, name="tail").start()


def recorded_events(streams: Streams, names: Sequence[str] = EVENT_STREAMS) -> Iterator[Record]:
    """Yields the events of these streams, by incarnation, and the `Resumed` between two incarnations.

    A stream may be missing in the first incarnations.
    """
    begin = dict.fromkeys(names, 0)
    for resumed in resumptions(streams):
        ends = begin | resumed.ends
        for name in names:
            yield from recorded(streams, name, begin[name], ends[name])
        yield resumed
        begin = ends
    for name in names:
        yield from recorded(streams, name, begin[name])


def recorded(streams: Streams, name: str, begin: int = 0, end: int | None = None) -> Iterator[Record]:
    """Yields the records between two offsets, except those that retention has deleted."""
    reader = streams.reader(name)
    begin = max(begin, reader.first_offset())
    if end is not None and begin >= end:
        return
    for entry in reader.read(begin, timeout_s=0):
        yield entry.record
        if entry.next_offset == end:
            return


def resumptions(streams: Streams) -> Iterator[Resumed]:
    for entry in streams.reader("launcher_events").read(timeout_s=0):
        if isinstance(entry.record, Resumed):
            yield entry.record


def latest_resumption(streams: Streams) -> Resumed:
    """Returns the newest `Resumed`, or FRESH_RUN if the run was never resumed."""
    return [FRESH_RUN, *resumptions(streams)][-1]


def results_left(results: Sequence[Evaluated], version: int) -> list[Evaluated]:
    """Returns the evaluations that remain valid after a resumption at `version`: no newer one sampled them.

    A run that resumes at version 0 repeats its evaluation.
    """
    return [result for result in results if result.last_version <= version and version > 0]


def evaluated_versions(results: Sequence[Evaluated]) -> set[int]:
    """Returns the versions that need no evaluation: those evaluated, and those that were due but skipped."""
    return {version for result in results for version in (result.version, result.due) if version is not None}


def valid_results(streams: Streams) -> list[Evaluated]:
    """Returns the recorded evaluations that no resumption has undone."""
    results: list[Evaluated] = []
    for event in recorded_events(streams, ("actor_events",)):
        if isinstance(event, Evaluated):
            results.append(event)
        elif isinstance(event, Resumed):
            results = results_left(results, event.version)
    return results
