"""Advantages against TRL's own, for the same rewards.

`GRPOTrainer._generate_and_score_completions` runs as it is; only completions and rewards are given to it.
"""

import random

import numpy as np
import pytest
import torch

from pipelinerl.advantages import Gdpo, GroupMean, StepStd

GROUP_SIZE = 4
WEIGHTS = {"right": 1.0, "short": 0.25, "polite": -0.5}


@pytest.fixture(autouse=True)
def float64():
    """TRL corrects deviations by a quotient in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def random_rewards(seed: int, columns: int) -> np.ndarray:
    """Returns the rewards of 6 groups, [24, columns]. In some groups they are all equal."""
    rng = random.Random(seed)
    rows = []
    for _ in range(6):
        spread = [rng.choice([0.0, 0.01, 1.0, 100.0]) for _ in range(columns)]
        means = [rng.gauss(0, 30) for _ in range(columns)]
        for _ in range(GROUP_SIZE):
            rows.append([rng.gauss(mean, s) for mean, s in zip(means, spread, strict=True)])
    return np.array(rows)


def of_groups(advantage, rewards: np.ndarray) -> np.ndarray:
    return np.concatenate([advantage(group) for group in np.split(rewards, len(rewards) // GROUP_SIZE)])


@pytest.mark.parametrize("seed", range(4))
def test_gdpo_is_that_of_trl(seed, trl_trainers, tmp_path):
    trainer = trl_trainers.GivenRewards(
        WEIGHTS,
        GROUP_SIZE,
        output_dir=str(tmp_path),
        multi_objective_aggregation="normalize_then_sum",
    )
    rewards, advantage = random_rewards(seed, len(WEIGHTS)), Gdpo(WEIGHTS)
    found = advantage.over_step(of_groups(advantage, rewards))
    np.testing.assert_allclose(found, trainer.advantages(rewards), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("std", "scale"), [(True, "group"), (False, "none")])
def test_the_mean_of_a_group_is_that_of_trl(std, scale, trl_trainers, tmp_path):
    trainer = trl_trainers.GivenRewards(
        {"right": 1.0}, GROUP_SIZE, output_dir=str(tmp_path), scale_rewards=scale
    )
    rewards = random_rewards(0, 1)
    found = of_groups(GroupMean(std), rewards[:, 0])
    np.testing.assert_allclose(found, trainer.advantages(rewards), rtol=1e-10, atol=1e-13)


def test_step_std_is_trls_scale_of_the_batch_times_one_factor(trl_trainers, tmp_path):
    """TRL's, Lite PPO's, is the deviation of the rewards; `step_std` has that of the centred ones."""
    trainer = trl_trainers.GivenRewards(
        {"right": 1.0}, GROUP_SIZE, output_dir=str(tmp_path), scale_rewards="batch"
    )
    rewards = random_rewards(1, 1)
    advantage = StepStd(GroupMean(std=False))
    centred = of_groups(advantage, rewards[:, 0])
    factor = (rewards.std(ddof=1) + 1e-4) / (centred.std(ddof=1) + 1e-4)
    found = advantage.over_step(centred)
    np.testing.assert_allclose(found, factor * trainer.advantages(rewards), rtol=1e-10, atol=1e-13)
    assert factor > 1.1
