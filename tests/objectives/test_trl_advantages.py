"""Advantages against TRL's own, for the same rewards.

`GRPOTrainer._generate_and_score_completions` runs as it is; only completions and rewards are given to it.
"""

import random
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from trl import GRPOConfig, GRPOTrainer

from pipelinerl.advantages import Gdpo, GroupMean, StepStd

GROUP_SIZE = 4
WEIGHTS = {"right": 1.0, "short": 0.25, "polite": -0.5}


class GivenRewards(GRPOTrainer):
    """TRL's trainer without a model: completions of one token, and given rewards [N, K]."""

    def __init__(self, weights: dict[str, float], **settings):
        self.args = GRPOConfig(
            use_cpu=True, bf16=False, report_to="none", num_generations=GROUP_SIZE, **settings
        )
        self.model = torch.nn.Identity().train()
        self.model.is_gradient_checkpointing = False
        self.accelerator = Accelerator(cpu=True)
        self._metrics = {"train": defaultdict(list)}
        self._logs = defaultdict(list, rewards=defaultdict(list))
        self._pending_extra_logs = {}
        self._pending_metrics = {}
        self._tokenizer = SimpleNamespace(pad_token_id=0)
        # As in GRPOTrainer.__init__, which wants a model and a data set.
        self.environment_factories = self.environments = self.tools = self.pad_to_multiple_of = None
        self.mask_truncated_completions = self.use_vllm = False
        self.beta = self.args.beta
        self.num_iterations = self.args.num_iterations
        self.num_generations = GROUP_SIZE
        self.scale_rewards = self.args.scale_rewards
        self.multi_objective_aggregation = self.args.multi_objective_aggregation
        self.reward_weights = torch.tensor([*weights.values()], dtype=torch.float64)
        self.reward_funcs = self.reward_func_names = [*weights]

    def _generate(self, prompts):
        answers = [[1]] * len(prompts)
        return answers, answers, None, ["a"] * len(prompts), None, {}, None, None

    def _calculate_rewards(self, *args):
        return self.rewards

    def advantages(self, rewards: np.ndarray) -> np.ndarray:
        self.rewards = torch.from_numpy(rewards)
        return self._generate_and_score_completions([{"prompt": "a"}] * len(rewards))["advantages"].numpy()


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
def test_gdpo_is_that_of_trl(seed, tmp_path):
    trainer = GivenRewards(
        WEIGHTS, output_dir=str(tmp_path), multi_objective_aggregation="normalize_then_sum"
    )
    rewards, advantage = random_rewards(seed, len(WEIGHTS)), Gdpo(WEIGHTS)
    found = advantage.over_step(of_groups(advantage, rewards))
    np.testing.assert_allclose(found, trainer.advantages(rewards), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("std", "scale"), [(True, "group"), (False, "none")])
def test_the_mean_of_a_group_is_that_of_trl(std, scale, tmp_path):
    trainer = GivenRewards({"right": 1.0}, output_dir=str(tmp_path), scale_rewards=scale)
    rewards = random_rewards(0, 1)
    found = of_groups(GroupMean(std), rewards[:, 0])
    np.testing.assert_allclose(found, trainer.advantages(rewards), rtol=1e-10, atol=1e-13)


def test_step_std_is_trls_scale_of_the_batch_times_one_factor(tmp_path):
    """TRL's, Lite PPO's, is the deviation of the rewards; `step_std` has that of the centred ones."""
    trainer = GivenRewards({"right": 1.0}, output_dir=str(tmp_path), scale_rewards="batch")
    rewards = random_rewards(1, 1)
    advantage = StepStd(GroupMean(std=False))
    centred = of_groups(advantage, rewards[:, 0])
    factor = (rewards.std(ddof=1) + 1e-4) / (centred.std(ddof=1) + 1e-4)
    found = advantage.over_step(centred)
    np.testing.assert_allclose(found, factor * trainer.advantages(rewards), rtol=1e-10, atol=1e-13)
    assert factor > 1.1
