"""Decides when a run is solved: enough consecutive evaluations have reached `stop_at`. Pure state, no I/O."""

from collections.abc import Iterable

from contracts.records import Evaluated
from pipelinerl.config import StopAtConfig


class Stopping:
    """The evaluations of a run, in their order.

    results: the valid evaluations before this process.
    solved: the evaluation that solved the run, or None. Later evaluations do not change it.
    """

    def __init__(self, stop_at: StopAtConfig | None, results: Iterable[Evaluated] = ()):
        self.solved: Evaluated | None = None
        self._stop_at = stop_at
        self._in_a_row = 0
        for result in results:
            self.observe(result)

    def observe(self, result: Evaluated) -> None:
        if self._stop_at is None or self.solved is not None:
            return
        self._in_a_row = self._in_a_row + 1 if result.success >= self._stop_at.success else 0
        if self._in_a_row == self._stop_at.evaluations:
            self.solved = result
