import numpy as np
import pytest

from pipelinerl.advantages import GroupMean, LeaveOneOut, MaxRL, Return, UnfitRewardsError
from pipelinerl.batching.credit import per_turn, whole_trajectory
from tests.builders import completion, rollout


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


def test_a_turn_that_one_rollout_alone_came_to_has_no_advantage():
    found = per_turn([turns(0, 5), turns(1)], GroupMean(std=False))
    assert [a.tolist() for a in found] == [[2, 0], [-2]]


def test_a_rollout_of_one_turn_has_the_same_either_way():
    group = [rollout(0, i, reward=r) for i, r in enumerate([1.0, 0.25, 0.0])]
    one, other = whole_trajectory(group, LeaveOneOut()), per_turn(group, LeaveOneOut())
    assert np.array_equal(np.concatenate(one), np.concatenate(other))


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
