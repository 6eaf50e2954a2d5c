"""Aborts a run whose gradients stay NaN or infinite. Pure state, no I/O.

Every trainer rank has a Progress and reports each step to it, so that all ranks end at the same step.
"""

import math

from contracts.trainer import StepReport
from pipelinerl.errors import GaveUpError
from pipelinerl.errors.part_faults import Happened, describe_fault

MOST_IN_A_ROW = 3


class Progress:
    """The finiteness of the last gradients.

    objective: named in the error message. has_begun: True if earlier steps exist.
    """

    def __init__(self, objective: object, has_begun: bool):
        self._objective = objective
        self._has_learned = has_begun
        self._steps = 0
        self._in_a_row = 0  # last steps without a finite gradient

    def closed(self, report: StepReport) -> None:
        """Records a step. Raises GaveUpError after `MOST_IN_A_ROW` steps without a finite gradient."""
        self._steps += 1
        is_not_finite = report.skipped or not math.isfinite(report.grad_norm)
        self._in_a_row = self._in_a_row + 1 if is_not_finite else 0
        self._has_learned = self._has_learned or not is_not_finite
        if self._in_a_row == MOST_IN_A_ROW:
            raise GaveUpError(self._fault(f"{MOST_IN_A_ROW} steps in a row"))

    def ended(self) -> None:
        """Must be called after the last step. Raises GaveUpError if no step had a finite gradient."""
        if self._steps and not self._has_learned:
            raise GaveUpError(self._fault(f"all {self._steps} steps"))

    def _fault(self, steps: str) -> str:
        came = Happened(f"the gradients of {steps} were NaN or infinite")
        return describe_fault(self._objective, "a finite gradient", came, role="objective")
