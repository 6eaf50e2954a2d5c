import numpy as np
import pytest

from pipelinerl.advantages import (
    Constant,
    GroupMean,
    LeaveOneOut,
    MaxRL,
    PassAtK,
    Return,
    StepStd,
    UnfitRewardsError,
)
from pipelinerl.batching.credit import CREDIT, per_turn, whole_trajectory
from tests.builders import completion, rollout
from tests.objectives.trust_oracles import pass_at_k


def turns(*rewards: float, last: float = 0.0):
    """A rollout that earned so much in each turn, and `last` at the end."""
    answers = [completion([1], [2])] * len(rewards)
    return rollout(0, completions=answers, turn_rewards=[*rewards], reward=sum(rewards) + last)


def test_whole_trajectory_gives_every_turn_the_rollouts_advantage():
    found = whole_trajectory([turns(1, 0), turns(0), turns(0, 0, 0)], LeaveOneOut())
    assert [a.tolist() for a in found] == [[1, 1], [-0.5], [-0.5] * 3]


def test_a_turn_has_what_came_after_it_against_those_that_came_as_far():
    found = per_turn([turns(1, 0, last=2), turns(0, 1), turns(0)], LeaveOneOut())
    # Returns to go: [3, 2], [1, 1], [0]
    assert [a.tolist() for a in found] == [[2.5, 1], [-0.5, -1], [-2]]
    alone = per_turn([turns(0, 5), turns(1)], GroupMean(std=False))  # one that nobody else came to
    assert [a.tolist() for a in alone] == [[2, 0], [-2]]


def test_advantages_by_hand():
    rewards = np.array([1.0, 0.0, 0.0, 1.0], dtype=np.float32)
    assert np.allclose(LeaveOneOut()(rewards), [2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert GroupMean(std=False)(rewards).tolist() == [0.5, -0.5, -0.5, 0.5]
    deviation = np.sqrt(4 * 0.25 / 3)
    assert np.allclose(GroupMean(std=True)(rewards), [x / (deviation + 1e-4) for x in (0.5, -0.5, -0.5, 0.5)])
    assert MaxRL()(rewards).tolist() == [1, -1, -1, 1]
    assert MaxRL()(np.float32([1, 0, 0, 0])).tolist() == [3, -1, -1, -1]
    assert MaxRL()(np.zeros(3)).tolist() == [0, 0, 0]
    with pytest.raises(UnfitRewardsError, match="no advantage for -0.39"):
        MaxRL()(np.float32([1, -0.3, -0.3, -0.39]))  # (r − mean) / mean would begin with 399
    assert Return()(rewards).tolist() == rewards.tolist()
    for advantage in (LeaveOneOut(), GroupMean(std=True), GroupMean(std=False), MaxRL()):
        assert advantage(np.float32([3.0])).tolist() == [0.0]


@pytest.mark.parametrize("size", range(1, 8))
def test_pass_at_k_is_that_of_all_choices_of_k_attempts(size):
    for right in range(size + 1):
        rewards = [1.0] * right + [0.0] * (size - right)
        for k in range(1, size + 1):
            found = PassAtK(k, std=False)(np.array(rewards))
            np.testing.assert_allclose(found, pass_at_k(rewards, k), rtol=1e-12, atol=1e-15)


def test_pass_at_k_divides_by_the_deviation_of_the_reward_of_k():
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    share = 1 / 2  # of the pairs, the right one is in 3 of 6
    expected = np.array(pass_at_k(rewards.tolist(), 2)) / np.sqrt(share * (1 - share))
    np.testing.assert_allclose(PassAtK(2, std=True)(rewards), expected, rtol=1e-12)
    assert PassAtK(2, std=True)(np.zeros(4, dtype=np.float32)).tolist() == [0.0] * 4
    assert PassAtK(4, std=True)(np.array([1.0, 0.0])).tolist() == [0.0, 0.0]  # fewer attempts than k


def test_pass_at_k_is_for_rewards_of_zero_and_one():
    with pytest.raises(UnfitRewardsError, match="pass_at_k") as refusal:
        PassAtK(2, std=True)(np.array([1.0, 0.3]))
    assert refusal.value.reason == "reward_not_0_or_1"
    for k in (0, 2.5):
        with pytest.raises(ValueError, match="k must be 1 or more"):
            PassAtK(k, std=True)


def test_an_advantage_over_the_step_is_another_one_times_a_factor():
    rewards = np.array([1.0, 0.0, 0.0, 1.0], dtype=np.float32)
    step_std = StepStd(GroupMean(std=False))
    assert np.array_equal(step_std(rewards), GroupMean(std=False)(rewards))
    assert step_std.over_step(np.array([3.0])).tolist() == [3.0]
    with pytest.raises(ValueError, match="choose another advantage"):
        StepStd(Return())
    with pytest.raises(ValueError, match="once"):
        StepStd(step_std)
    with pytest.raises(ValueError, match="_target_"):
        StepStd("group_mean")


def test_each_completion_has_its_own_reward():
    pair = rollout(0, turn_rewards=[1.0, -1.0], completions=[completion([1], [2]), completion([1], [3])])
    (advantages,) = CREDIT["completion"]([pair], Constant())
    assert advantages.tolist() == [1.0, -1.0]
