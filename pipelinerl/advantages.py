"""Advantages: how much better an attempt was than its group. Rewards [G] -> advantages [G].

A new one is a class like this and a file in `conf/advantage/`.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LeaveOneOut:
    """A_i = r_i − mean of the others' rewards (RLOO, arXiv 2402.14740); 0 for a group of one."""

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        others = len(rewards) - 1
        if others == 0:
            return np.zeros_like(rewards)
        return rewards - (rewards.sum() - rewards) / others
