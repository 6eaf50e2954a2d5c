"""Advantages of several reward components: against their formula, and what they become in a step's rows."""

import random
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace

from pipelinerl.advantages import Gdpo, GroupMean, StepStd, UnfitRewardsError
from pipelinerl.batching.credit import whole_trajectory
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.batching.staleness import StalePolicy
from pipelinerl.batching.step_formation import StepFormation
from pipelinerl.filters import Overlong
from pipelinerl.normalisations import PerSequence
from pipelinerl.packing import Fifo
from pipelinerl.streams.drop_reasons import meaning_of
from tests.batching.workload import FIELDS, GROUP_SIZE, random_groups
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


def test_a_component_counts_by_its_deviation_in_the_group_alone():
    plain, scaled = Gdpo({"right": 1.0, "short": 1.0}), Gdpo({"short": 1.0})
    rewards = np.array([[1.0, 300.0], [0.0, 100.0], [0.0, 0.0]])
    alone = [scaled(rewards[:, [k]]) for k in (0, 1)]
    np.testing.assert_allclose(plain(rewards), sum(alone), rtol=1e-12)
    assert abs(alone[0]).max() == pytest.approx(1.1547, rel=1e-3)  # 2/3 over √(1/3)


def test_a_component_that_is_the_same_in_a_group_adds_exactly_nothing():
    """In float32 the mean of seven times 0.1 is not 0.1."""
    rewards = np.full((7, 1), 0.1, np.float32)
    assert (rewards != rewards.mean(axis=0)).any()
    assert Gdpo({"polite": 1.0})(rewards).tolist() == [0.0] * 7


def test_a_member_without_others_has_no_advantage():
    assert Gdpo(WEIGHTS)(np.ones((1, 3), np.float32)).tolist() == [0.0]
    assert Gdpo(WEIGHTS).over_step(np.array([3.0])).tolist() == [0.0]
    assert StepStd(GroupMean(std=False)).over_step(np.array([3.0])).tolist() == [3.0]


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
    fields = {"mark": np.zeros(3, np.uint8), "weight": np.zeros(3, np.float32)}
    marked = [completion([1, 2], [3, 4, 5], token_fields=fields)]
    members = [replace(member, completions=marked) for member in members]
    outcome = formation(Gdpo({"right": 1.0, "short": 1.0})).add_group(members)
    assert outcome.dropped == "no_component_short"
    assert meaning_of(outcome.dropped).brief == "no reward component short"


def formation(advantage) -> StepFormation:
    return StepFormation(
        advantages=partial(whole_trajectory, advantage=advantage),
        filters=[Overlong()],
        stale=StalePolicy("mask", max_lag=2),
        sequences=partial(training_sequences, last_segments=True, token_fields=FIELDS),
        normalisation=PerSequence(),
        packing=Fifo(micro_batch_tokens=100, ranks=1),
        batch_size=4 * GROUP_SIZE,
        token_fields=FIELDS,
        over_step=advantage.over_step,
    )


def test_each_token_of_a_step_has_the_advantage_of_its_turn_over_the_step():
    """Rollouts have several turns and sequences. Truncated, failed and stale ones are among them.

    A sampled token that is not in the loss, because it is in an earlier segment, has its advantage too.
    """
    rng = random.Random(0)
    steps, kept, rows = formation(Gdpo(WEIGHTS)), [], []
    for members in random_groups(seed=3, count=12):
        members = [replace(r, reward_components={name: rng.gauss(0, 9) for name in WEIGHTS}) for r in members]
        outcome = steps.add_group(members)
        rows += outcome.rows
        if outcome.dropped is None:
            kept.append([r for r in members if not r.failed])
        if outcome.rows:
            break
    turns = [[len(r.completions) * (r.status == "ok") for r in members] for members in kept]
    expected = gdpo([[r.reward_components for r in members] for members in kept], WEIGHTS, turns)
    by_rollout = {
        r.rollout_id: value
        for members, values in zip(kept, expected, strict=True)
        for r, value in zip(members, values, strict=True)
    }
    sequences = [s for row in rows for micro_batch in row.micro_batches for s in micro_batch]
    assert max(len(r.completions) for members in kept for r in members) > 2 and len(sequences) > 10
    for sequence in sequences:
        wanted = np.where(sequence.versions >= 0, by_rollout[sequence.rollout_id], 0.0)
        np.testing.assert_allclose(sequence.advantages, wanted, rtol=1e-5, atol=1e-6)
        assert sequence.advantages.dtype == np.float32


def test_a_hook_over_the_step_may_treat_each_turn_by_itself():
    """Turns of one rollout get 1, 2, 3, ... in order, in one merged sequence and in one of its own."""

    class Numbers(GroupMean):
        def over_step(self, advantages):
            return np.arange(1.0, len(advantages) + 1)

    merged = [completion([1], [2, 3]), completion([1, 2, 3, 9], [4]), completion([7], [8, 8])]
    numbers = Numbers(std=False)
    steps = StepFormation(
        partial(whole_trajectory, advantage=numbers),
        [],
        StalePolicy("keep", None),
        training_sequences,
        PerSequence(),
        Fifo(1000, 1),
        2,
        over_step=numbers.over_step,
    )
    (row,) = steps.add_group(group(0, [1, 0], completions=merged)).rows
    found = [s.advantages.tolist() for s in row.micro_batches[0]]
    assert found == [[0, 1, 1, 0, 2], [0, 3, 3], [0, 4, 4, 0, 5], [0, 6, 6]]


def test_a_hook_that_loses_a_turn_is_refused():
    class Shorter(GroupMean):
        def over_step(self, advantages):
            return advantages[1:]

    steps = formation(Shorter(std=False))
    with pytest.raises(ValueError, match=r"over_step returned \(\d+,\) advantages for \d+ turns"):
        for members in random_groups(seed=3, count=12):
            steps.add_group(members)


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


def test_it_is_normalised_over_the_step_once():
    with pytest.raises(ValueError, match="scaled over the step once"):
        StepStd(Gdpo(WEIGHTS))
