"""Advantages: how much better an attempt was than its group. Rewards [G] -> advantages [G].

To add an advantage, write a class like these and a file in `conf/advantage/`. The advantage in a group of one
is 0, except where a value head is the baseline.
"""

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
class Return:
    """A_i = r_i, for an objective that subtracts a learned value (`objectives/value_baseline.py`)."""

    needs_values = True
    learned_baseline = True

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        return rewards.copy()
