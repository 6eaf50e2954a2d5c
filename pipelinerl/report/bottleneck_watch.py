"""Re-evaluates a run's bottleneck after every step, and reports it when it changes. Pure state."""

from dataclasses import asdict

from pipelinerl.report.bottleneck import BOUNDS, NOT_RECORDED, Finding, bottleneck
from pipelinerl.report.measurements import Line, MetricLines

STEPS = 20  # newest steps that are evaluated
HOLDS = 10  # consecutive steps with the same finding before it is reported


class BottleneckWatch:
    """The current bottleneck, `now`, and the sentences to print, `unsaid`."""

    def __init__(self) -> None:
        self._lines = MetricLines(STEPS)
        self.now = NOT_RECORDED
        self._said: Finding | None = None
        self._held = 0  # consecutive steps with the finding of `now`
        self.unsaid: list[str] = []

    def observe(self, process: str, line: Line) -> dict[str, float]:
        """Observes a line of metrics. Returns metrics of the complete run if a step ends with it."""
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
