"""Spans: what a process of a run did when, one JSON line each, in `RUN_DIR/spans/<process>.jsonl`.

A line is `{"n": name, "t": unix seconds at which it began, "d": seconds, ...facts}`. A span may contain
others. A killed process leaves those that had ended.

    trainer-<rank>  wait (for the next row), learn (step, tokens: forward, objective and backward of one
                    micro-batch), optimizer, quiesce (`schedule: async`), publish (version), which on rank 0
                    contains open, send (gather_s: the share of it in which weights were gathered) and
                    confirm; probe (version: what scoring it took, and waiting for late answers), save
    actor           evaluation (version); each second, places: means of in_flight, capacity,
                    under_way (rollouts begun) and away (of those, waiting for a judgement), the seconds
                    for which it was blocked, by the word of `Admission.blocked_by`
    preprocessor    score (step, sequences): the reference's work on one row
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelinerl.metrics import LineFile


def spans_path(run_dir: Path, process: str) -> Path:
    """Returns the file of the process's spans."""
    return run_dir / "spans" / f"{process}.jsonl"


class Spans:
    """Writes the spans of one process, and adds up how long each kind took."""

    def __init__(self, run_dir: Path, process: str):
        self._lines = LineFile(spans_path(run_dir, process), "spans")
        self._seconds: Counter[str] = Counter()
        self._since = time.monotonic()

    @contextmanager
    def __call__(self, name: str, **facts: float | str) -> Iterator[None]:
        """Records the block as a span, also where it raises."""
        began = time.time()
        since = time.monotonic()
        try:
            yield
        finally:
            self.add(name, began, time.monotonic() - since, **facts)

    def add(self, name: str, began: float, seconds: float, **facts: object) -> None:
        """Records a span that has ended. `began` is in unix seconds."""
        self._seconds[name] += seconds
        line = {"n": name, "t": round(began, 6), "d": round(seconds, 6), **facts}
        self._lines.append(json.dumps(line, allow_nan=False))

    def taken(self) -> tuple[float, dict[str, float]]:
        """Returns the seconds since the last call, and of those the seconds of each kind that has ended."""
        now = time.monotonic()
        elapsed = now - self._since
        seconds = dict(self._seconds)
        self._since = now
        self._seconds.clear()
        return elapsed, seconds
