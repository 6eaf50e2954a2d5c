"""What the trainer tells the launcher of servers: which have weights, and which it cannot publish to."""

from collections.abc import Iterator

from contracts.records import ServerCondemned, WeightsPublished
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
