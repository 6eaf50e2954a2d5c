"""What the launcher reads of the events of a run, and what it writes of restarts.

The workers tell it of servers, of the reference server, and of steps. A restart is told by a record in the
run's history, a line of the console, and a metric.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from contracts.records import Record, Restarted, StepClosed, TrainingDone
from pipelinerl.launcher.messages import say
from pipelinerl.metrics import MetricsWriter
from pipelinerl.streams import Streams, StreamWriter
from pipelinerl.streams.events import latest_resumption

Kind = Literal["servers", "workers", "services"]


class News:
    """Reads the records of some kinds in a stream since this launch of the run began, each once."""

    def __init__(self, streams: Streams, name: str, *kinds: type[Record]):
        self._reader = streams.reader(name)
        self._offset = latest_resumption(streams).ends.get(name, 0)
        self._kinds = kinds

    def read(self) -> Iterator[Record]:
        """Yields what has been written since the last call."""
        for entry in self._reader.read(self._offset, timeout_s=0):
            self._offset = entry.next_offset
            if isinstance(entry.record, self._kinds):
                yield entry.record


class StepNews:
    """The steps that the trainer has closed since the present workers began, as last read.

    made: the newest version that they have made; None before their first.
    done: whether the last step has closed.
    """

    def __init__(self, streams: Streams):
        self._reader = streams.reader("trainer_events")
        self._offset = latest_resumption(streams).ends.get("trainer_events", 0)
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


class RestartLog:
    """events: the writer of `launcher_events`."""

    def __init__(self, run_dir: Path, events: StreamWriter):
        self._events = events
        self._metrics = MetricsWriter(run_dir, "launcher")
        self._counts: Counter[Kind] = Counter()

    def restarted(self, service: str, why: str) -> None:
        """Tells that this service begins again."""
        self.record("services", [service], why)
        say(f"{why}; started again: {service}")

    def record(self, kind: Literal["workers", "services"], names: list[str], why: str) -> None:
        """Tells it to all but the console, which has been told before."""
        self._events.append(Restarted(kind=kind, names=names, why=why))
        self.count(kind)

    def count(self, kind: Kind) -> None:
        """Counts a restart that is told elsewhere, as that of a server is."""
        self._counts[kind] += 1
        counts = {f"restarts_{kind}": count for kind, count in self._counts.items()}
        self._metrics.write(self._counts.total(), **counts)
