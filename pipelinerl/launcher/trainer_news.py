"""What the trainer tells the launcher: which servers have weights, which it cannot publish to, its steps."""

from collections.abc import Iterator

from contracts.records import ServerCondemned, StepClosed, TrainingDone, WeightsPublished
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
