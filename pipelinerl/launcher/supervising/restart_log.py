"""Where a restart is told: a record in the run's history, a line of the console, a metric."""

from collections import Counter
from pathlib import Path
from typing import Literal

from contracts.records import Restarted
from pipelinerl.launcher.messages import say
from pipelinerl.metrics import MetricsWriter
from pipelinerl.streams import StreamWriter

Kind = Literal["servers", "workers", "services"]


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
