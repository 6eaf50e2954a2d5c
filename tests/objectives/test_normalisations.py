"""What a token weighs, counted by hand."""

import numpy as np
import pytest

from pipelinerl.normalisations import (
    GroupTokens,
    PerGroupToken,
    PerRolloutToken,
    PerSequence,
    PerStepToken,
    PerTokenLimit,
)
from tests.objectives.batches import NORMALISATIONS

# Two groups of three: one has lost a member, and a rollout of the other has no token in the loss.
GROUPS = [GroupTokens(3, np.array([4, 6])), GroupTokens(3, np.array([2, 0, 8]))]


@pytest.mark.parametrize(
    "normalisation, expected",
    [
        (PerSequence(), [[1 / 6] * 2, [1 / 6] * 3]),
        (PerStepToken(), [[1 / 20] * 2, [1 / 20] * 3]),
        (PerGroupToken(), [[1 / 2 / 10] * 2, [1 / 2 / 10] * 3]),
        (PerRolloutToken(), [[1 / 6 / 4, 1 / 6 / 6], [1 / 6 / 2, None, 1 / 6 / 8]]),
        (PerTokenLimit(16), [[1 / 96] * 2, [1 / 96] * 3]),
    ],
)
def test_weights_are_those_counted_by_hand(normalisation, expected):
    """None: a weight of no token."""
    weights = normalisation(GROUPS, 6)
    for found, wanted in zip(weights, expected, strict=True):
        for weight, by_hand in zip(found, wanted, strict=True):
            assert np.isfinite(weight)
            assert by_hand is None or weight == pytest.approx(by_hand, rel=1e-15)


@pytest.mark.parametrize("normalisation", [n for n in NORMALISATIONS.values() if not n.whole_step])
def test_what_need_not_see_the_whole_step_does_not_look_at_it(normalisation):
    together = normalisation(GROUPS, 6)
    apart = [normalisation([group], 6)[0] for group in GROUPS]
    for one, other in zip(together, apart, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("normalisation", NORMALISATIONS.values())
def test_a_step_without_a_token_in_the_loss_has_finite_weights(normalisation):
    (weights,) = normalisation([GroupTokens(2, np.array([0, 0]))], 2)
    assert np.isfinite(weights).all()
