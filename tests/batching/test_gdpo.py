"""Advantages of several reward components: against their formula, and what they become in a step's rows."""

import random

import numpy as np
import pytest
from msgspec.structs import replace

from pipelinerl.advantages import Gdpo, GroupMean, StepStd, UnfitRewardsError
from pipelinerl.batching.credit import whole_trajectory
from pipelinerl.batching.step_formation import StepFormation
from pipelinerl.filters import Overlong
from pipelinerl.streams.drop_reasons import meaning_of
from tests.batching.test_step_formation import formation as step_formation
from tests.builders import completion, group, rollout
from tests.objectives.advantage_oracles import gdpo

WEIGHTS = {"right": 1.0, "short": 0.25, "polite": -0.5}
SIZES = [2, 4, 4, 7]


def random_components(seed: int, sizes: list[int]) -> list[list[dict[str, float]]]:
    """Returns the components of each member of each group. Some are the same in a group."""
    rng = random.Random(seed)
    groups = []
    for size in sizes:
        right = [rng.choice([0.0, 1.0]) for _ in range(size)]
        short = [rng.gauss(0, 100) for _ in range(size)]
        polite = [0.1] * size if rng.random() < 0.5 else [rng.gauss(0, 0.01) for _ in range(size)]
        columns = {"right": right, "short": short, "polite": polite, "unnamed": short}
        groups.append([{name: column[i] for name, column in columns.items()} for i in range(size)])
    return groups


@pytest.mark.parametrize("seed", range(6))
def test_the_advantages_of_a_step_follow_the_formula(seed):
    groups = random_components(seed, SIZES)
    advantage = Gdpo(WEIGHTS)
    rewards = [np.array([[member[name] for name in WEIGHTS] for member in members]) for members in groups]
    found = advantage.over_step(np.concatenate([advantage(of_group) for of_group in rewards]))
    np.testing.assert_allclose(found, np.concatenate(gdpo(groups, WEIGHTS)), rtol=1e-10, atol=1e-13)


def test_a_component_that_is_the_same_in_a_group_adds_exactly_nothing():
    """In float32 the mean of seven times 0.1 is not 0.1."""
    rewards = np.full((7, 1), 0.1, np.float32)
    assert (rewards != rewards.mean(axis=0)).any()
    assert Gdpo({"polite": 1.0})(rewards).tolist() == [0.0] * 7


def test_a_member_without_others_has_no_advantage():
    assert Gdpo(WEIGHTS)(np.ones((1, 3), np.float32)).tolist() == [0.0]
    assert Gdpo(WEIGHTS).over_step(np.array([3.0])).tolist() == [0.0]


def test_a_reward_without_components_is_the_task():
    group_of_two = group(0, [1.0, 0.0])
    found = whole_trajectory(group_of_two, Gdpo({"task": 2.0}))
    deviation = 0.5**0.5 + 1e-4
    np.testing.assert_allclose(np.concatenate(found), [1 / deviation, -1 / deviation], rtol=1e-6)


def test_a_group_without_a_component_is_dropped_by_its_name():
    whole, part = {"right": 1.0, "short": 0.5}, {"right": 0.0}
    members = [rollout(0, i, reward_components=given) for i, given in enumerate((whole, part))]
    with pytest.raises(UnfitRewardsError, match="rollout 0-1 has no reward component short, but right"):
        whole_trajectory(members, Gdpo({"right": 1.0, "short": 1.0}))
    outcome = formation(Gdpo({"right": 1.0, "short": 1.0})).add_group(members)
    assert outcome.dropped == "no_component_short"
    assert meaning_of(outcome.dropped).brief == "no reward component short"


def formation(advantage) -> StepFormation:
    return step_formation(2, advantage=advantage, over_step=advantage.over_step, filters=[Overlong()])


def test_a_hook_over_the_step_may_treat_each_turn_by_itself():
    """Turns in the loss get 1, 2, 3, ... in order, in one merged sequence and in one of its own."""

    class Numbers(GroupMean):
        def over_step(self, advantages):
            return np.arange(1.0, len(advantages) + 1)

    merged = [completion([1], [2, 3]), completion([1, 2, 3, 9], [4]), completion([7], [8, 8])]
    members = group(0, [1, 0, 0], completions=merged)
    members[1] = replace(members[1], status="truncated")
    (row,) = formation(Numbers(std=False)).add_group(members).rows
    found = [s.advantages.tolist() for s in row.micro_batches[0]]
    assert found == [[0, 1, 1, 0, 2], [0, 3, 3], [0, 4, 4, 0, 5], [0, 6, 6]]


def test_a_hook_that_loses_a_turn_is_refused():
    class Shorter(GroupMean):
        def over_step(self, advantages):
            return advantages[1:]

    with pytest.raises(ValueError, match=r"over_step returned \(1,\) advantages for 2 turns"):
        formation(Shorter(std=False)).add_group(group(0, [1, 0]))


@pytest.mark.parametrize(
    ("components", "says"),
    [
        ({}, "components must be weights by name"),
        (["task"], "components must be weights by name"),
        ({"task": None}, "components.task must be a number"),
        ({"task": float("nan")}, "components.task must be a number"),
    ],
)
def test_weights_that_make_no_sense_are_refused(components, says):
    with pytest.raises(ValueError, match=says):
        Gdpo(components)


def test_step_std_around_components_is_refused():
    class OfComponents(GroupMean):
        components = WEIGHTS

    with pytest.raises(ValueError, match="compares rewards, not their components"):
        StepStd(OfComponents(std=False))
