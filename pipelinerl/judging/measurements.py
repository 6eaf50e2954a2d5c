"""Measures the judging service and writes its metrics, by verifier."""

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from pipelinerl.judging.wire import Judgement
from pipelinerl.metrics import MetricsWriter

WINDOW = 1000  # newest judgements of a verifier in a quantile


@dataclass
class OfVerifier:
    """The measurements of one verifier. Times are of the questions since the last `write`."""

    seconds: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)
    undecided: Counter[str] = field(default_factory=Counter)  # counts since the start, by reason


class Measured:
    """The times of one question, from its arrival to its reply."""

    def __init__(self, of: OfVerifier, all_: "Measurements", in_worker: bool):
        self._of = of
        self._all = all_
        self._in_worker = in_worker
        self._arrived = time.monotonic()
        self._began: float | None = None

    def begin(self) -> None:
        self._began = time.monotonic()
        self._of.queue_s.append(self._began - self._arrived)

    def judged(self, judgement: Judgement) -> None:
        if judgement.word == "undecided":
            self._of.undecided[judgement.outcome.partition(":")[2]] += 1

    def end(self) -> None:
        if self._began is not None:
            spent_s = time.monotonic() - self._began
            self._of.seconds.append(spent_s)
            self._all.busy_s += spent_s if self._in_worker else 0.0


class Measurements:
    """The measurements of all verifiers.

    workers: the number of workers, for `busy_share`. own: verifiers that occupy no worker.
    """

    def __init__(self, workers: int, own: Collection[str] = ()):
        self._workers = workers
        self._own = own
        self._verifiers: defaultdict[str, OfVerifier] = defaultdict(OfVerifier)
        self._since = time.monotonic()
        self.waiting = 0
        self.judged = 0
        self.busy_s = 0.0  # busy seconds of all workers since the last `write`

    @contextmanager
    def question(self, verifier: str) -> Iterator[Measured]:
        """Measures one question, which arrives at the start of the block and has its reply at the end."""
        measured = Measured(self._verifiers[verifier], self, verifier not in self._own)
        self.waiting += 1
        try:
            yield measured
        finally:
            self.waiting -= 1
            self.judged += 1
            measured.end()

    def write(self, writer: MetricsWriter, restarts: int) -> None:
        """Writes a line of metrics on the judgements since the last one."""
        now = time.monotonic()
        busy = self.busy_s / (self._workers * (now - self._since))
        values = {"waiting": self.waiting, "busy_share": min(1.0, busy), "restarts": restarts}
        for name, of in self._verifiers.items():
            values |= _quantiles(f"seconds_{name}", of.seconds, 0.5, 0.99)
            values |= _quantiles(f"queue_s_{name}", of.queue_s, 0.99)
            values |= {f"undecided_{why}_{name}": count for why, count in of.undecided.items()}
            of.seconds.clear()
            of.queue_s.clear()
        writer.write(self.judged, **values)
        self._since = now
        self.busy_s = 0.0


def _quantiles(name: str, values: list[float], *shares: float) -> dict[str, float]:
    if not values:
        return {}
    return {f"{name}_p{share * 100:g}": float(np.quantile(values[-WINDOW:], share)) for share in shares}
