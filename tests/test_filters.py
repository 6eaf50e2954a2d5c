"""Filters, alone and in the formation of a step."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from contracts.records import DropReason, decode, encode
from pipelinerl.advantages import LeaveOneOut, PassAtK
from pipelinerl.batching.credit import whole_trajectory
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.batching.staleness import StalePolicy
from pipelinerl.batching.step_formation import StepFormation
from pipelinerl.filters import AdvantageRange, Overlong, SuccessBand, ZeroAdvantage
from pipelinerl.normalisations import PerStepToken
from pipelinerl.packing import Fifo
from tests.builders import completion, group, rollout


def formation(*filters) -> StepFormation:
    return StepFormation(
        partial(whole_trajectory, advantage=LeaveOneOut()),
        filters,
        StalePolicy("keep", None),
        training_sequences,
        PerStepToken(),
        Fifo(micro_batch_tokens=1000, ranks=1),
        batch_size=8,
    )


def truncated_group(group_id: int, *truncated: int):
    statuses = ["truncated" if i in truncated else "ok" for i in range(4)]
    return [rollout(group_id, i, reward=float(i == 0), status=s) for i, s in enumerate(statuses)]


def test_zero_advantage_keeps_all_or_nothing():
    def keep(rollouts):
        return ZeroAdvantage()(rollouts, LeaveOneOut()(np.array([r.reward for r in rollouts]))).tolist()

    assert keep(group(0, [0, 1])) == [True, True]
    assert keep(group(0, [1, 1])) == keep(group(0, [0, 0])) == [False, False]
    assert keep(group(0, [0.1 + 0.2, 0.3, 0.3])) == [False] * 3  # equal up to rounding
    turns = group(0, [1], turn_rewards=[1.0, 0.0]) + group(0, [1], turn_rewards=[0.0, 1.0])
    assert ZeroAdvantage()(turns, [np.array([0.5, -0.5]), np.array([-0.5, 0.5])]).tolist() == [True, True]
    assert ZeroAdvantage()(turns, [np.zeros(2), np.zeros(2)]).tolist() == [False, False]


def test_a_group_without_an_advantage_is_dropped_though_its_rewards_differ():
    rewards = np.array([1.0, 1.0, 1.0, 0.0])
    advantages = PassAtK(2, std=True)(rewards)
    assert not ZeroAdvantage()(group(0, rewards.tolist()), [*advantages]).any()


@pytest.mark.parametrize(("successes", "kept"), [([1, 0, 1], True), ([1, 1, 1], False), ([0, 0.5, 0], False)])
def test_the_success_band_wants_right_and_wrong_members_whatever_their_rewards(successes, kept):
    rollouts = [rollout(0, i, reward=0.1 * i, metrics={"success": s}) for i, s in enumerate(successes)]
    assert SuccessBand()(rollouts, []).tolist() == [kept] * 3


def test_advantages_beyond_the_range_are_left_out():
    advantages = [np.array([0.5]), np.array([-0.5, 3.1]), np.array([np.nan])]
    assert AdvantageRange(largest=3)(group(0, [0, 0, 0]), advantages).tolist() == [True, False, False]
    with pytest.raises(ValueError, match="largest must be positive"):
        AdvantageRange(largest=0)


def test_truncated_rollouts_leave_the_loss_and_stay_in_the_baseline():
    steps = formation(Overlong())
    assert steps.add_group(truncated_group(0, 1)).dropped is None
    (row,) = steps.add_group(truncated_group(1)).rows
    (sequences,) = row.micro_batches
    assert [s.rollout_id for s in sequences] == ["0-0", "0-2", "0-3", "1-0", "1-1", "1-2", "1-3"]
    assert sequences[0].advantages[-1] == 1.0 and sequences[1].advantages[-1] == np.float32(-1 / 3)
    assert steps.masked == Counter({DropReason.OVERLONG: 1})
    assert decode(encode(row)).masked == {"overlong": ["0-1"]}
    assert steps.add_group(truncated_group(2)).rows == []
    (row,) = steps.add_group(truncated_group(3)).rows
    assert row.masked == {}


def test_a_group_of_which_nothing_is_kept_is_dropped_for_the_filter_that_took_the_last():
    steps = formation(Overlong(), AdvantageRange(largest=0.5))
    assert steps.add_group(truncated_group(0, 0, 1, 2, 3)).dropped == DropReason.OVERLONG
    assert steps.add_group(truncated_group(1, 1, 2, 3)).dropped == DropReason.ADVANTAGE_RANGE
    assert steps.masked == Counter() and steps.open_groups == []


def test_a_filter_of_ones_own_brings_its_own_reason():
    class Boring:
        reason = "boring"

        def __call__(self, rollouts, advantages):
            return np.zeros(len(rollouts), dtype=bool)

    assert formation(Boring()).add_group(group(0, [0, 1, 0, 1])).dropped == "boring"


def test_the_weights_of_a_step_are_over_the_tokens_that_are_in_its_loss():
    """A normalisation over the whole step holds its rows; stale and filtered tokens do not count."""
    steps = formation(Overlong())
    long = completion([1], [2, 3, 4, 5, 6, 7])
    assert steps.add_group(truncated_group(0, 1)).rows == []
    (row,) = steps.add_group(group(1, [0, 1, 0, 1], completions=[long])).rows
    weights = {s.loss_weight for s in row.micro_batches[0]}
    assert weights == {1 / (3 * 3 + 4 * 6)}
