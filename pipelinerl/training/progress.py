"""Ends a run whose steps are for nothing, as their gradients are NaN or infinite. Pure state.

The trainer tells it of each step, on every rank: all see the same steps.
"""

import math

from contracts.trainer import StepReport
from pipelinerl.errors import GaveUpError
from pipelinerl.errors.part_faults import Happened, fault

MOST_IN_A_ROW = 3


class Progress:
    """objective: of the run, which its faults name. has_begun: whether an earlier launch has made steps."""

    def __init__(self, objective: object, has_begun: bool):
        self._objective = objective
        self._has_made_one = has_begun
        self._steps = 0
        self._in_a_row = 0  # the last steps, for nothing

    def closed(self, report: StepReport) -> None:
        """Takes a step into account. Raises GaveUpError if it is one too many that was for nothing."""
        self._steps += 1
        is_for_nothing = report.skipped or not math.isfinite(report.grad_norm)
        self._in_a_row = self._in_a_row + 1 if is_for_nothing else 0
        self._has_made_one = self._has_made_one or not is_for_nothing
        if self._in_a_row == MOST_IN_A_ROW:
            raise GaveUpError(self._fault(f"{MOST_IN_A_ROW} steps in a row"))

    def ended(self) -> None:
        """Raises GaveUpError if the run has come to its last step, and all were for nothing."""
        if self._steps and not self._has_made_one:
            raise GaveUpError(self._fault(f"all {self._steps} steps"))

    def _fault(self, steps: str) -> str:
        came = Happened(f"the gradients of {steps} were NaN or infinite")
        return fault(self._objective, "a finite gradient", came, role="objective")
