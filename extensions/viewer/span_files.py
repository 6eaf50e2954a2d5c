"""Reads the spans of a run's processes within a period, also during the run."""

from pathlib import Path

from extensions.viewer.tracks import Slice
from pipelinerl.metrics import MetricsTail

PLACES = "places"  # the span whose facts are means


class SpanFiles:
    """The files `RUN_DIR/spans/*.jsonl`. Each line is read once."""

    def __init__(self, run_dir: Path):
        self._directory = run_dir / "spans"
        self._tails: dict[str, MetricsTail] = {}
        self._slices: dict[str, list[Slice]] = {}

    def update(self) -> None:
        """Reads new lines."""
        for path in sorted(self._directory.glob("*.jsonl")):
            tail = self._tails.setdefault(path.stem, MetricsTail(path))
            slices = self._slices.setdefault(path.stem, [])
            slices += (slice_of(line) for line in tail.read() if is_span(line))

    def between(self, began: float, ended: float) -> dict[str, list[Slice]]:
        """Returns the spans of each process that overlap the period, in unix seconds."""
        return {
            process: [slice_ for slice_ in slices if slice_.ended > began and slice_.began < ended]
            for process, slices in self._slices.items()
        }


def is_span(line: dict) -> bool:
    """Returns whether a line has a name, a time and a duration, i.e. was written completely."""
    times = (line.get("t"), line.get("d"))
    return isinstance(line.get("n"), str) and all(isinstance(value, int | float) for value in times)


def slice_of(line: dict) -> Slice:
    """Converts a line of a span file to a slice."""
    facts = {name: value for name, value in line.items() if name not in ("n", "t", "d")}
    return Slice(line["n"], line["t"], line["t"] + line["d"], facts)
