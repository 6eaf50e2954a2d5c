"""The event streams: following them from asyncio, and reading a run's whole history.

A run has as many lives as launches: `Resumed`, in the launcher's stream, ends one and begins the next.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence

from contracts.records import Evaluated, Record, Resumed
from pipelinerl.streams.base import StreamReader, Streams

EVENT_STREAMS = ("actor_events", "preprocessor_events", "trainer_events")
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


def follow(reader: StreamReader, from_offset: int, queue: "asyncio.Queue[Record | BaseException]") -> None:
    """Put every record of the stream into `queue`, for as long as the process lives; and what ends it.
    One daemon thread per stream."""
    loop = asyncio.get_running_loop()

    def put(item: Record | BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody follows any more
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def pump() -> None:
        try:
            for entry in reader.read(from_offset):
                put(entry.record)
        except Exception as error:
            put(error)

    threading.Thread(target=pump, daemon=True, name="follow").start()


def recorded_events(streams: Streams, names: Sequence[str] = EVENT_STREAMS) -> Iterator[Record]:
    """Every event of these streams so far: of each life all that was written, then the `Resumed` after it."""
    begin = dict.fromkeys(names, 0)
    for entry in streams.reader("launcher_events").read(timeout_s=0):
        resumed: Resumed = entry.record
        for name in names:
            yield from recorded(streams, name, begin[name], resumed.ends[name])
        yield resumed
        begin = resumed.ends
    for name in names:
        yield from recorded(streams, name, begin[name])


def recorded(streams: Streams, name: str, begin: int = 0, end: int | None = None) -> Iterator[Record]:
    """What a stream holds between two offsets; retention may have let go of its beginning."""
    reader = streams.reader(name)
    begin = max(begin, reader.first_offset())
    if end is not None and begin >= end:
        return
    for entry in reader.read(begin, timeout_s=0):
        yield entry.record
        if entry.next_offset == end:
            return


def latest_launch(streams: Streams) -> Resumed:
    """With what the launcher began this life of the run."""
    resumed = FRESH_RUN
    for entry in streams.reader("launcher_events").read(timeout_s=0):
        resumed = entry.record
    return resumed


def results_left(results: Sequence[Evaluated], version: int) -> list[Evaluated]:
    """Of evaluations, those that going back to `version` leaves: it undoes no weights that they sampled from.
    A run that begins again with version 0 evaluates it again."""
    return [result for result in results if result.last_version <= version and version > 0]


def results_before(streams: Streams) -> list[Evaluated]:
    """The evaluations that this life of the run begins with."""
    results: list[Evaluated] = []
    for event in recorded_events(streams, ("actor_events",)):
        if isinstance(event, Evaluated):
            results.append(event)
        elif isinstance(event, Resumed):
            results = results_left(results, event.version)
    return results
