"""Reads what the workers tell the launcher: of servers, of the reference server, and of steps."""

from collections.abc import Iterator

from contracts.records import (
    Record,
    ReferenceCondemned,
    ServerCondemned,
    StepClosed,
    TrainingDone,
    WeightsPublished,
)
from pipelinerl.streams import Streams
from pipelinerl.streams.events import latest_launch


class News:
    """Reads the records of some kinds in a stream since this launch of the run began, each once."""

    def __init__(self, streams: Streams, name: str, kinds: tuple[type[Record], ...]):
        self._reader = streams.reader(name)
        self._offset = latest_launch(streams).ends.get(name, 0)
        self._kinds = kinds

    def read(self) -> Iterator[Record]:
        """Yields what has been written since the last call."""
        for entry in self._reader.read(self._offset, timeout_s=0):
            self._offset = entry.next_offset
            if isinstance(entry.record, self._kinds):
                yield entry.record


def server_news(streams: Streams) -> News:
    """Returns what the trainer says of servers: which have weights, and which it cannot publish to."""
    return News(streams, "trainer_events", (WeightsPublished, ServerCondemned))


def reference_news(streams: Streams) -> News:
    """Returns what the preprocessor says of the reference server."""
    return News(streams, "preprocessor_events", (ReferenceCondemned,))


class StepNews:
    """The steps that the trainer has closed since the present workers began, as last read.

    made: the newest version that they have made; None before their first.
    done: whether the last step has closed.
    """

    def __init__(self, streams: Streams):
        self._reader = streams.reader("trainer_events")
        self._offset = latest_launch(streams).ends.get("trainer_events", 0)
        self.made: int | None = None
        self.done = False

    def read(self) -> None:
        """Reads what has been written by now."""
        for entry in self._reader.read(self._offset, timeout_s=0):
            self._offset = entry.next_offset
            if isinstance(entry.record, StepClosed):
                self.made = entry.record.version
            self.done = self.done or isinstance(entry.record, TrainingDone)

    def begin_again(self) -> None:
        """Takes note that other workers begin, after all that was written until now."""
        self.read()
        self.made = None
        self.done = False
