"""Reads the lines of all metrics files of a run, for trackers."""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pipelinerl.metrics import MetricsTail

LONGEST_STEP = 2**53  # more steps than any run has
MOST = 1000  # lines of one file per call


class Line(NamedTuple):
    """One line of a metrics file."""

    process: str  # process that has written the line
    end: int  # end of the line in its file, in bytes
    time: float  # unix seconds
    step: int
    numbers: dict[str, float]  # by `<process>/<name>`, without null values


class MetricsLines:
    """A reader of the growing `RUN_DIR/metrics/*.jsonl`, each line once. A file may appear at any time."""

    def __init__(self, run_dir: Path):
        self._directory = run_dir / "metrics"
        self._tails: dict[str, MetricsTail] = {}
        self._begins: Mapping[str, int] = {}

    @property
    def offsets(self) -> dict[str, int]:
        """The number of bytes read from each file, by the process that writes it."""
        return dict(self._begins) | {process: tail.position for process, tail in self._tails.items()}

    def seek(self, offsets: Mapping[str, int]) -> None:
        """Continues from these offsets, and from the start of other files."""
        self._begins = offsets
        self._tails.clear()

    def read(self) -> list[Line]:
        """Returns lines that were completed since the last call, the oldest of each file first."""
        lines = []
        for path in sorted(self._directory.glob("*.jsonl")):
            process = path.stem
            if process not in self._tails:
                self._tails[process] = MetricsTail(path, begin=_begin(path, self._begins.get(process, 0)))
            lines += islice(_read(process, self._tails[process]), MOST)
        return lines


def _begin(path: Path, offset: int) -> int:
    """Returns the offset to continue from in a file, which a loss of power may have shortened."""
    if path.stat().st_size >= offset:
        return offset
    return path.read_bytes().rfind(b"\n") + 1


def _read(process: str, tail: MetricsTail) -> Iterator[Line]:
    for values in tail.read():
        if isinstance(values, dict) and _is_number(values.get("time")) and _is_step(values.get("step")):
            numbers = {f"{process}/{name}": value for name, value in values.items() if _is_number(value)}
            del numbers[f"{process}/time"], numbers[f"{process}/step"]
            yield Line(process, tail.position, values["time"], int(values["step"]), numbers)


def _is_step(value: object) -> bool:
    """Returns True if a value is a step that trackers can store, in 64 bits."""
    return _is_number(value) and abs(value) < LONGEST_STEP


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
