"""What the trainer tells the launcher: which servers have weights, which it cannot publish to, its steps."""

from collections.abc import Iterator

from contracts.records import ServerCondemned, StepClosed, WeightsPublished
from pipelinerl.streams import Streams
from pipelinerl.streams.events import latest_launch


class TrainerNews:
    """What the trainer has said of servers since this launch of the run began."""

    def __init__(self, streams: Streams):
        self._reader = streams.reader("trainer_events")
        self._offset = latest_launch(streams).ends.get("trainer_events", 0)

    def read(self) -> Iterator[WeightsPublished | ServerCondemned]:
        for entry in self._reader.read(self._offset, timeout_s=0):
            self._offset = entry.next_offset
            if isinstance(entry.record, WeightsPublished | ServerCondemned):
                yield entry.record


class StepNews:
    """The steps that the trainer has closed since the present workers began."""

    def __init__(self, streams: Streams):
        self._reader = streams.reader("trainer_events")
        self._offset = latest_launch(streams).ends.get("trainer_events", 0)
        self._made: int | None = None

    def made(self) -> int | None:
        """Returns the newest version that they have made; None before their first."""
        for entry in self._reader.read(self._offset, timeout_s=0):
            self._offset = entry.next_offset
            if isinstance(entry.record, StepClosed):
                self._made = entry.record.version
        return self._made

    def begin_again(self) -> None:
        """Takes note that other workers begin, after all that was written until now."""
        self.made()
        self._made = None
