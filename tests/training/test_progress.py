"""Runs whose steps change nothing, and those that only begin so."""

import math
from dataclasses import replace

import pytest

from contracts.trainer import StepReport
from pipelinerl.errors import GaveUpError
from pipelinerl.training.progress import Progress
from tests.nan_objective import NanOnce

MADE = StepReport(1.0, 1e-3, skipped=False)
SKIPPED = StepReport(math.nan, 1e-3, skipped=True)
WITHOUT_GRADIENT = StepReport(0.0, 1e-3, skipped=False)
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
    with pytest.raises(GaveUpError, match="3 steps in a row"):
        run(MADE, *[replace(SKIPPED, skipped=False)] * 3)
    run(SKIPPED, SKIPPED, MADE, SKIPPED, SKIPPED)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_ends_badly_if_all_of_its_steps_were_skipped(steps):
    with pytest.raises(GaveUpError, match=PART + f"a finite gradient, .* all {steps} steps"):
        run(*[SKIPPED] * steps)
    run(*[SKIPPED] * steps, has_begun=True)
    run(*[SKIPPED] * steps, WITHOUT_GRADIENT)


def test_a_run_without_steps_ends_well():
    run()
