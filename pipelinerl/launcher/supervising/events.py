"""Reads the events of a run for the launcher, and records restarts."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from contracts.records import Record, Restarted, StepClosed, TrainingDone
from pipelinerl.metrics import MetricsWriter
from pipelinerl.streams import Streams, StreamWriter
from pipelinerl.streams.events import latest_resumption

Kind = Literal["servers", "workers", "services"]


class EventReader:
    """Reads the records of some kinds in a stream, each once, from the latest resume on."""

    def __init__(self, streams: Streams, name: str, *kinds: type[Record]):
        self._reader = streams.reader(name)
        self._offset = latest_resumption(streams).ends.get(name, 0)
        self._kinds = kinds

    def read(self) -> Iterator[Record]:
        for entry in self._reader.read(self._offset, timeout_s=0):
            self._offset = entry.next_offset
            if isinstance(entry.record, self._kinds):
                yield entry.record


class TrainingProgress:
    """The progress of the current workers, as last read."""

    def __init__(self, streams: Streams):
        self._events = EventReader(streams, "trainer_events", StepClosed, TrainingDone)
        self.version: int | None = None  # the newest version that they have made
        self.done = False  # whether the last step has closed

    def read(self) -> None:
        for event in self._events.read():
            if isinstance(event, StepClosed):
                self.version = event.version
            else:
                self.done = True

    def reset(self) -> None:
        """Skips the events of the earlier workers, before the workers restart."""
        self.read()
        self.version = None
        self.done = False


class RestartLog:
    """Records restarts in `launcher_events` and in the metrics. events: the writer of `launcher_events`."""

    def __init__(self, run_dir: Path, events: StreamWriter):
        self._events = events
        self._metrics = MetricsWriter(run_dir, "launcher")
        self._counts: Counter[Kind] = Counter()

    def record(self, kind: Literal["workers", "services"], names: list[str], why: str) -> None:
        self._events.append(Restarted(kind=kind, names=names, why=why))
        self.count(kind)

    def count(self, kind: Kind) -> None:
        """Counts a restart without recording it: the restart of a server has records of its own."""
        self._counts[kind] += 1
        counts = {f"restarts_{kind}": count for kind, count in self._counts.items()}
        self._metrics.write(self._counts.total(), **counts)
