"""Runs whose steps change nothing, and those that only begin so."""

import math

import pytest

from contracts.trainer import StepReport
from pipelinerl.errors import GaveUpError
from pipelinerl.training.progress import Progress
from tests.nan_objective import NanOnce

MADE = StepReport(1.0, 1e-3, skipped=False)
SKIPPED = StepReport(math.nan, 1e-3, skipped=True)
WITHOUT_GRADIENT = StepReport(0.0, 1e-3, skipped=False)
WITHOUT_RATE = StepReport(1.0, 0.0, skipped=False)
PART = r"^objective tests.nan_objective.NanOnce \(tests/nan_objective.py:9\): expected "


def run(*steps: StepReport, has_begun: bool = False) -> None:
    progress = Progress(NanOnce(5.0), has_begun)
    for step in steps:
        progress.closed(step)
    progress.ended()


def test_three_skipped_steps_in_a_row_end_a_run_that_has_learnt():
    with pytest.raises(
        GaveUpError, match=PART + "a finite gradient, but the gradients of 3 steps in a row were"
    ):
        run(MADE, SKIPPED, SKIPPED, SKIPPED, MADE)
    run(SKIPPED, SKIPPED, MADE, SKIPPED, SKIPPED)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([SKIPPED], "of 1 steps, 1 were skipped"),
        ([SKIPPED, WITHOUT_GRADIENT, SKIPPED], "2 were skipped, .* and 1 were made with a gradient or a"),
        ([WITHOUT_GRADIENT] * 9, "of 9 steps, 9 were made with a gradient or a learning rate of 0"),
        ([WITHOUT_RATE] * 2, "of 2 steps, 2 were made with a gradient or a learning rate of 0"),
    ],
)
def test_a_run_ends_badly_if_no_step_has_changed_the_weights(steps, says):
    with pytest.raises(GaveUpError, match=PART + f"a step that changes the weights, but .*{says}"):
        run(*steps)
    run(*steps, has_begun=True)
    run(*steps, MADE)


def test_a_run_without_steps_ends_well():
    run()
