"""What bounds a run while it runs: looked at after each step, and said when it has changed. Pure state."""

from dataclasses import asdict

from pipelinerl.report.bottleneck import BOUNDS, NOT_RECORDED, Finding, bottleneck
from pipelinerl.report.measurements import Line, MetricLines

STEPS = 20  # that are looked at
HOLDS = 10  # steps for which a finding must hold before it is said


class BottleneckWatch:
    """Follows the metrics of a run."""

    def __init__(self) -> None:
        self._lines = MetricLines(STEPS)
        self.now = NOT_RECORDED
        self._said: Finding | None = None
        self._held = 0  # steps for which `now` has been the finding
        self.unsaid: list[str] = []  # sentences that are to be printed

    def observe(self, process: str, line: Line) -> dict[str, float]:
        """Takes a line of metrics. Returns the metrics of the run where a step ends with it."""
        if not self._lines.observe(process, line):
            return {}
        measured = self._lines.measured()
        found = bottleneck(measured)
        if found.finding == Finding.NOT_RECORDED or measured is None:
            return {}
        self._held = self._held + 1 if found.finding == self.now.finding else 1
        self.now = found
        if self._held >= HOLDS and found.finding != self._said:
            self._said = found.finding
            self.unsaid.append(f"step {line['step']}: {found.sentence}")
        shares = {name: value for name, value in asdict(measured).items() if isinstance(value, float)}
        flags = {f"bottleneck_{finding}": float(finding == found.finding) for finding in sorted(FLAGS)}
        return shares | flags | {"blocked": sum(measured.blocked.values())}


FLAGS = BOUNDS | {Finding.BALANCED, Finding.UNCLEAR}
