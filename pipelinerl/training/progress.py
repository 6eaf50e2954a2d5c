"""Ends a run whose steps change nothing. Pure state; the trainer tells it of each step.

Called on every rank, which all see the same steps.
"""

from contracts.trainer import StepReport
from pipelinerl.errors import GaveUpError
from pipelinerl.errors.part_faults import Happened, fault

MOST_SKIPPED = 3  # in a row


class Progress:
    """objective: of the run, which its faults name. has_begun: whether an earlier launch has made steps."""

    def __init__(self, objective: object, has_begun: bool):
        self._objective = objective
        self._has_begun = has_begun
        self._steps = 0
        self._has_learnt = False
        self._skipped = 0  # in a row
        self._skipped_in_all = 0

    def closed(self, report: StepReport) -> None:
        """Takes a step into account. Raises GaveUpError if it is the last of several that were skipped."""
        self._steps += 1
        self._skipped = self._skipped + 1 if report.skipped else 0
        self._skipped_in_all += report.skipped
        self._has_learnt = self._has_learnt or changes_weights(report)
        if self._skipped == MOST_SKIPPED:
            came = (
                f"the gradients of {MOST_SKIPPED} steps in a row were NaN or infinite, so they were skipped"
            )
            raise GaveUpError(self._fault("a finite gradient", came))

    def ended(self) -> None:
        """Raises GaveUpError if the run has come to its last step, and none has changed the weights."""
        if self._has_learnt or self._has_begun or not self._steps:
            return
        others = self._steps - self._skipped_in_all
        counts = {
            "skipped, as their gradients were NaN or infinite": self._skipped_in_all,
            "made with a gradient or a learning rate of 0": others,
        }
        came = " and ".join(f"{count} were {how}" for how, count in counts.items() if count)
        raise GaveUpError(self._fault("a step that changes the weights", f"of {self._steps} steps, {came}"))

    def _fault(self, expected: str, came: str) -> str:
        return fault(self._objective, expected, Happened(came), role="objective")


def changes_weights(report: StepReport) -> bool:
    """Returns whether the step was made, with a gradient and a learning rate other than 0."""
    return not report.skipped and report.grad_norm != 0 and report.learning_rate != 0
