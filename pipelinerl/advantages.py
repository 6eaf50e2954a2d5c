"""Advantages of the rollouts of a group: rewards [G] -> advantages [G].

To add an advantage, write a class like these and a file in `conf/advantage/`. An advantage without a baseline
in the group has `least_members` 1; any other one is 0 in a group of one rollout.

An advantage may have two more attributes. `components` is a mapping whose keys are names of reward
components; the advantage is then called with these, [G, K], instead of the rewards. `over_step` is a function
from the advantages [N] of all turns of a step to the final ones, [N].
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


class UnfitRewardsError(ValueError):
    """The advantage is not defined for a group's rewards. The group is dropped with `reason`."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class LeaveOneOut:
    """A_i = r_i − mean of the others' rewards (RLOO, arXiv 2402.14740)."""

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        others = len(rewards) - 1
        if others == 0:
            return np.zeros_like(rewards)
        return rewards - (rewards.sum() - rewards) / others


@dataclass(frozen=True)
class GroupMean:
    """A_i = r_i − mean (Dr. GRPO, arXiv 2503.20783; Kimi k1.5, arXiv 2501.12599, §2.3).

    With `std` it is divided by the group's unbiased standard deviation + 1e-4 (GRPO, arXiv 2402.03300,
    §4.1.2).
    """

    std: bool

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        centred = rewards - rewards.mean()
        if self.std and len(rewards) > 1:
            centred = centred / (rewards.std(ddof=1) + 1e-4)
        return centred


@dataclass(frozen=True)
class MaxRL:
    """A_i = (r_i − mean) / mean, or 0 if the mean is 0, for rewards that are not negative.

    It approximates maximum likelihood of success, in which rare successes have more weight. Raises
    UnfitRewardsError for a negative reward, because a mean close to 0 gives unbounded advantages.
    Source: MaxRL, arXiv 2602.02710.
    """

    needs_rewards_from_zero = True

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        if (rewards < 0).any():
            raise UnfitRewardsError("negative_reward", f"max_rl has no advantage for {rewards.min():g}")
        mean = rewards.mean()
        return (rewards - mean) / mean if mean > 0 else np.zeros_like(rewards)


@dataclass(frozen=True)
class PassAtK:
    """A_i of the reward of k attempts together, which is 1 if any of them is right (arXiv 2508.10751).

    A_i = m_i − m. m is the mean reward over all choices of k of the group's n attempts, and m_i that over the
    choices that contain i. If w attempts are wrong:

        m = 1 − C(w, k) / C(n, k)
        m_i = 1 if i is right, else 1 − C(w − 1, k − 1) / C(n − 1, k − 1)

    With `std`, A_i is divided by √(m (1 − m)), as in the paper. A_i is 0 with fewer than k attempts. Raises
    UnfitRewardsError for rewards other than 0 and 1.
    """

    needs_rewards_of_0_and_1 = True

    k: int
    std: bool

    def __post_init__(self):
        if not (isinstance(self.k, int) and self.k >= 1):
            raise ValueError(f"k must be 1 or more, not {self.k}")

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        is_right = rewards == 1
        if not (is_right | (rewards == 0)).all():
            raise UnfitRewardsError("reward_not_0_or_1", f"pass_at_k has no advantage for {rewards.tolist()}")
        n = len(rewards)
        wrong = n - int(is_right.sum())
        if n < self.k or wrong < self.k:  # there is no choice, or every choice is right
            return np.zeros_like(rewards)
        mean = 1 - math.comb(wrong, self.k) / math.comb(n, self.k)
        mean_of_wrong = 1 - math.comb(wrong - 1, self.k - 1) / math.comb(n - 1, self.k - 1)
        scale = math.sqrt(mean * (1 - mean)) if self.std and mean > 0 else 1.0
        return (np.where(is_right, 1.0, mean_of_wrong) - mean).astype(rewards.dtype) / scale


@dataclass(frozen=True)
class StepStd:
    """A_i = Ã_i / (standard deviation of Ã over the step + 1e-4), with Ã_i another advantage.

    The deviation is unbiased, over the turns of all rollouts of the step, so rows leave only when their step
    is full. Unlike with the group's deviation, a group of similar rewards does not get more weight.
    Source: with Ã_i = r_i − mean, REINFORCE++-baseline, arXiv 2501.03262; ScaleRL, arXiv 2510.13786.
    """

    advantage: Callable[[np.ndarray], np.ndarray]  # Ã

    def __post_init__(self):
        if not callable(self.advantage):
            raise ValueError("advantage must be an advantage, with its own _target_")
        if getattr(self.advantage, "learned_baseline", False):
            raise ValueError("a return without a baseline cannot be scaled: choose another advantage")
        if hasattr(self.advantage, "over_step"):
            raise ValueError("an advantage is scaled over the step once: choose another one inside")
        if hasattr(self.advantage, "components"):
            raise ValueError("step_std compares rewards, not their components: choose another advantage")

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        return self.advantage(rewards)

    def over_step(self, advantages: np.ndarray) -> np.ndarray:
        if len(advantages) == 1:
            return advantages
        return advantages * (1 / (float(advantages.std(ddof=1)) + 1e-4))


@dataclass(frozen=True)
class Gdpo:
    """A_i = (Ã_i − mean of Ã over the step) / (its standard deviation over the step + 1e-4).

        Ã_i = Σ_k w_k (r_ik − mean_k) / (std_k + 1e-4)

    r_ik is component k of a rollout's reward; mean_k and std_k are those of the group. So components with
    small differences have the same weight as others. Deviations are unbiased, with 1e-4 added as in TRL and
    in the authors' code. Those of the step are over the turns of all rollouts, so rows leave only when their
    step is full. Components that are not in `components` are ignored. A group that lacks one is dropped.
    Source: GDPO, arXiv 2601.05242.
    """

    components: Mapping[str, float]  # w_k, by the component's name in the records

    def __post_init__(self):
        if not isinstance(self.components, Mapping) or not self.components:
            raise ValueError(f"components must be weights by name, like {{task: 1.0}}, not {self.components}")
        for name, weight in self.components.items():
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ValueError(f"components.{name} must be a number, its weight, not {weight}")
        if not any(self.components.values()):
            raise ValueError("components must have a weight other than 0")

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        if len(rewards) == 1:
            return np.zeros(1, rewards.dtype)
        exact = rewards.astype(np.float64)  # the mean of equal float32 numbers is exact
        normalised = (exact - exact.mean(axis=0)) / (exact.std(axis=0, ddof=1) + 1e-4)
        return (normalised @ np.array([*self.components.values()])).astype(rewards.dtype)

    def over_step(self, advantages: np.ndarray) -> np.ndarray:
        if len(advantages) == 1:
            return np.zeros_like(advantages)
        return (advantages - advantages.mean()) / (float(advantages.std(ddof=1)) + 1e-4)


@dataclass(frozen=True)
class Constant:
    """A_i = 1, for objectives that compare no attempts."""

    least_members = 1

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        return np.ones_like(rewards)


@dataclass(frozen=True)
class Return:
    """A_i = r_i, for objectives that subtract a learned value (`objectives/value_baseline.py`)."""

    needs_values = True
    learned_baseline = True
    least_members = 1

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        return rewards.copy()
