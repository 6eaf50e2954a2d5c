"""Reads the events of a growing run, with all events of an incarnation before the next `Resumed`."""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from contracts.records import Record, Resumed
from pipelinerl.streams.base import Entry, StreamError
from pipelinerl.streams.events import EVENT_STREAMS
from pipelinerl.streams.files import FileStreams

MOST = 5000  # events of one stream in memory


class EventFeed:
    """A reader of all event streams, which yields each event once."""

    def __init__(self, streams: FileStreams):
        self._readers = {name: streams.reader(name) for name in (*EVENT_STREAMS, "launcher_events")}
        self._positions = dict.fromkeys(self._readers, 0)
        self.damage: str | None = None  # what keeps the rest of a stream from being read
        self.is_at_end = False  # True if the last `read` has yielded all events
        self._of_launcher: deque[Record] = deque()  # events that were read, but not yielded yet

    def read(self) -> Iterator[Record]:
        """Yields the events since the last call, or a part of them. The next call yields the others."""
        self.damage = None
        self.is_at_end = False
        chunks = {name: self._chunk(name) for name in EVENT_STREAMS}
        # The launcher's events are read last, so that no event after a resumption precedes its `Resumed`.
        self._of_launcher.extend(self._take("launcher_events", self._chunk("launcher_events")))
        while self._of_launcher and not isinstance(self._of_launcher[0], Resumed):
            yield self._of_launcher.popleft()
        if not self._of_launcher:
            for name, chunk in chunks.items():
                yield from self._take(name, chunk)
            self.is_at_end = all(len(chunk) < MOST for chunk in chunks.values())
            return
        ends = self._of_launcher[0].ends
        for name, chunk in chunks.items():
            yield from self._take(name, [e for e in chunk if e.next_offset <= ends.get(name, 0)])
        if all(self._positions[name] >= ends.get(name, 0) for name in EVENT_STREAMS):
            yield self._of_launcher.popleft()

    def _chunk(self, name: str) -> list[Entry]:
        """Returns the next events of a stream, up to a damaged record."""
        chunk: list[Entry] = []
        try:
            for entry in islice(self._readers[name].read(self._positions[name], timeout_s=0), MOST):
                chunk.append(entry)
        except StreamError as error:
            self.damage = f"the stream {name} cannot be read as a whole: {error}"
        return chunk

    def _take(self, name: str, entries: list[Entry]) -> Iterator[Record]:
        for entry in entries:
            self._positions[name] = entry.next_offset
            yield entry.record
