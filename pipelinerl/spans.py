"""Spans: the timed activities of a run's processes, as JSON lines in `RUN_DIR/spans/<process>.jsonl`.

A line is `{"n": name, "t": start in unix seconds, "d": seconds, ...facts}`, written at the span's end. A span
may contain others.

    trainer-<rank>  wait (for the next row), learn (step, tokens: forward, objective and backward of one
                    micro-batch), optimizer, quiesce (until the actor has paused), publish (version), which on
                    rank 0 contains open, send (gather_s: its seconds of gathering weights) and confirm;
                    with turns, sleep (version: until all servers sleep), onload and, in publish, offload;
                    probe (version: scoring, and waiting for late answers), renew (version: storing the
                    weights for the reference and sending them), save
    actor           evaluation (version); each second, places: means of in_flight, capacity,
                    under_way (started rollouts that do not wait for a slot) and away (those of them that
                    wait for a judgement), and the seconds with an unused slot, by the words of `BlockedBy`
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
    return run_dir / "spans" / f"{process}.jsonl"


class Spans:
    """A writer of one process's spans, which also sums the seconds of each kind."""

    def __init__(self, run_dir: Path, process: str):
        self._lines = LineFile(spans_path(run_dir, process), "spans")
        self._seconds: Counter[str] = Counter()
        self._since = time.monotonic()

    @contextmanager
    def __call__(self, name: str, **facts: float | str) -> Iterator[None]:
        """Records the block as a span, also if it raises."""
        began = time.time()
        since = time.monotonic()
        try:
            yield
        finally:
            self.add(name, began, time.monotonic() - since, **facts)

    def add(self, name: str, began: float, seconds: float, **facts: object) -> None:
        """Records a span that has ended. began: unix seconds."""
        self._seconds[name] += seconds
        line = {"n": name, "t": round(began, 6), "d": round(seconds, 6), **facts}
        self._lines.append(json.dumps(line, allow_nan=False))

    def taken(self) -> tuple[float, dict[str, float]]:
        """Returns the seconds since the last call, and the seconds of each kind of span that ended since."""
        now = time.monotonic()
        elapsed = now - self._since
        seconds = dict(self._seconds)
        self._since = now
        self._seconds.clear()
        return elapsed, seconds
