"""Reads the metrics of a run for the viewer: the points of its charts, its alarms and its bottleneck."""

import re
from pathlib import Path
from typing import NamedTuple

from extensions.viewer.charts import Series
from extensions.viewer.lines import Line, MetricsLines
from pipelinerl.report.bottleneck import Bottleneck
from pipelinerl.report.bottleneck_watch import BottleneckWatch

ALARM = re.compile("(?:trainer|preprocessor)/alarm_(.*)")


class Alarm(NamedTuple):
    step: int
    name: str


class RunMetrics:
    """The metrics of one run, read up to the last `update`."""

    def __init__(self, run_dir: Path):
        self._lines = MetricsLines(run_dir)
        self._watch = BottleneckWatch()
        self.series = Series()
        self.alarms: list[Alarm] = []
        self._step = 0  # of the trainer's last line
        self.newest: dict[str, float] = {}  # last value of each metric
        self.began_at: float | None = None  # unix seconds of the oldest line
        self.updated_at: float | None = None  # unix seconds of the newest line

    @property
    def offsets(self) -> dict[str, int]:
        return self._lines.offsets

    @property
    def bottleneck(self) -> Bottleneck:
        return self._watch.now

    def update(self) -> None:
        """Reads new lines."""
        while lines := self._lines.read():
            for line in sorted(lines, key=lambda line: line.time):
                self._observe(line)

    def _observe(self, line: Line) -> None:
        self.series.observe(line)
        self.newest |= line.numbers
        if line.process == "trainer":
            if line.step < self._step:  # a resumption undid alarms of later steps
                self.alarms = [alarm for alarm in self.alarms if alarm.step <= line.step]
            self._step = line.step
        self.alarms += alarms_of(line)
        self.began_at = min(self.began_at or line.time, line.time)
        self.updated_at = max(self.updated_at or 0.0, line.time)
        begin = len(line.process) + 1
        numbers = {name[begin:]: value for name, value in line.numbers.items()}
        self._watch.observe(line.process, {"time": line.time, "step": line.step, **numbers})


def alarms_of(line: Line) -> list[Alarm]:
    """Returns the alarms raised in a line."""
    raised = [ALARM.fullmatch(name) for name, value in line.numbers.items() if value]
    return [Alarm(line.step, match[1]) for match in raised if match]
