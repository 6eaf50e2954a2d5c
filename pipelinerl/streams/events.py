"""The event streams: tails them from asyncio, and reads a run's history.

A resumed run has several launches: each `Resumed` in the launcher's stream begins another one.
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
    """Puts every record of the stream, and any error of reading, into `queue` until the process ends.

    Starts one daemon thread per stream.
    """
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
    """Yields every event of these streams so far: those of each launch, then the `Resumed` that followed.

    A stream that did not exist in a launch begins in a later one.
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
    """Yields the records between two offsets, except the first ones if retention has deleted them."""
    reader = streams.reader(name)
    begin = max(begin, reader.first_offset())
    if end is not None and begin >= end:
        return
    for entry in reader.read(begin, timeout_s=0):
        yield entry.record
        if entry.next_offset == end:
            return


def resumptions(streams: Streams) -> Iterator[Resumed]:
    """Yields the `Resumed` of every launch but the first. The launcher's stream may hold other records."""
    for entry in streams.reader("launcher_events").read(timeout_s=0):
        if isinstance(entry.record, Resumed):
            yield entry.record


def latest_resumption(streams: Streams) -> Resumed:
    """Returns the `Resumed` that began the newest launch, or FRESH_RUN if the run was never resumed."""
    return [FRESH_RUN, *resumptions(streams)][-1]


def results_left(results: Sequence[Evaluated], version: int) -> list[Evaluated]:
    """Returns the evaluations that stay valid after rolling back to `version`.

    Only versions up to `version` have sampled in them. A run that starts again at version 0 repeats its
    evaluation.
    """
    return [result for result in results if result.last_version <= version and version > 0]


def evaluated_versions(results: Sequence[Evaluated]) -> set[int]:
    """Returns the versions that need no evaluation: those of the results, and those that were due."""
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
