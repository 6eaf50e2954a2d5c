"""Advantages: how much better an attempt was than its group. Rewards [G] -> advantages [G].

To add an advantage, write a class like these and a file in `conf/advantage/`. One without a baseline in the
group has `least_members` 1; another one's advantage in a group of one is 0.

An advantage may have two attributes more. `components`, a mapping whose keys are names of reward components:
then it is called with these components, [G, K], in place of the rewards. `over_step`: a function that gets
the advantages of all turns of a step, [N], and returns the final ones, [N].
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


class UnfitRewardsError(ValueError):
    """The advantage is not defined for a group's rewards. The group is counted as dropped for `reason`."""

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

    With `std` it is divided by the group's standard deviation + 1e-4 (GRPO, arXiv 2402.03300, §4.1.2). The
    deviation is the unbiased one, as torch computes it.
    """

    std: bool

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        centred = rewards - rewards.mean()
        if self.std and len(rewards) > 1:
            centred = centred / (rewards.std(ddof=1) + 1e-4)
        return centred


@dataclass(frozen=True)
class MaxRL:
    """A_i = (r_i − mean) / mean, for rewards that are not negative (MaxRL, arXiv 2602.02710).

    It approximates maximum likelihood of success: a rare success counts for more. A_i is 0 if the mean is 0.
    Raises UnfitRewardsError for a negative reward: with a mean close to 0, the advantages have no bound.
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

    A_i = m_i − m. m is the mean reward over all choices of k of the group's n attempts. m_i is that of the
    choices with i among them. If w attempts are wrong:

        m = 1 − C(w, k) / C(n, k)
        m_i = 1 if i is right, else 1 − C(w − 1, k − 1) / C(n − 1, k − 1)

    With `std`, A_i is divided by √(m (1 − m)), as in the paper. Rewards must be 0 or 1, otherwise the group
    is dropped. With fewer than k attempts, A_i is 0.
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
        if n < self.k or wrong < self.k:  # every choice is right, or there is none
            return np.zeros_like(rewards)
        mean = 1 - math.comb(wrong, self.k) / math.comb(n, self.k)
        mean_of_wrong = 1 - math.comb(wrong - 1, self.k - 1) / math.comb(n - 1, self.k - 1)
        scale = math.sqrt(mean * (1 - mean)) if self.std and mean > 0 else 1.0
        return (np.where(is_right, 1.0, mean_of_wrong) - mean).astype(rewards.dtype) / scale


@dataclass(frozen=True)
class StepStd:
    """A_i = Ã_i / (standard deviation of Ã over the step + 1e-4), with Ã_i another advantage.

    With Ã_i = r_i − mean of the group it is REINFORCE++-baseline (arXiv 2501.03262) and ScaleRL's (arXiv
    2510.13786). A group whose rewards differ little does not count for more, as with GRPO's own deviation.
    The deviation is the unbiased one, over the turns of all rollouts of the step. Rows leave only when their
    step is full.
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
        """Returns the advantages [N] of a step, divided by their deviation."""
        if len(advantages) == 1:
            return advantages
        return advantages * (1 / (float(advantages.std(ddof=1)) + 1e-4))


@dataclass(frozen=True)
class Gdpo:
    """A_i = (Ã_i − mean of Ã over the step) / (its standard deviation over the step + 1e-4).

        Ã_i = Σ_k w_k (r_ik − mean_k) / (std_k + 1e-4)

    r_ik is component k of a rollout's reward; its mean and deviation are those of the group (GDPO, arXiv
    2601.05242). So a component with small differences counts as much as another one. Deviations are unbiased
    and have 1e-4 added, as in TRL and in the authors' code for it. The step's are over the turns of all
    rollouts. Rows leave only when their step is full. A component that `components` does not name does not
    count. A group that lacks one is dropped.
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
        exact = rewards.astype(np.float64)  # in which the mean of equal float32 numbers is that number
        normalised = (exact - exact.mean(axis=0)) / (exact.std(axis=0, ddof=1) + 1e-4)
        return (normalised @ np.array([*self.components.values()])).astype(rewards.dtype)

    def over_step(self, advantages: np.ndarray) -> np.ndarray:
        """Returns the advantages [N] of a step, with a mean of 0 and a deviation of almost 1."""
        if len(advantages) == 1:
            return np.zeros_like(advantages)
        return (advantages - advantages.mean()) / (float(advantages.std(ddof=1)) + 1e-4)


@dataclass(frozen=True)
class Constant:
    """A_i = 1, whatever the rewards, for an objective that compares no attempts."""

    least_members = 1

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        return np.ones_like(rewards)


@dataclass(frozen=True)
class Return:
    """A_i = r_i, for an objective that subtracts a learned value (`objectives/value_baseline.py`)."""

    needs_values = True
    learned_baseline = True
    least_members = 1

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        return rewards.copy()
