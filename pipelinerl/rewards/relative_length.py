"""Relative length: rewards short correct attempts at a problem, and penalises long ones.

    λ_i = 0.5 − (L_i − min L) / (max L − min L)

    weight · λ_i           if attempt i is correct
    weight · min(0, λ_i)   if it is wrong

and 0 for all if max L = min L. Source: Kimi k1.5, arXiv 2501.12599, §2.3.3. The paper adds the term later,
because it slows early training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.records import Rollout
from pipelinerl.rewards.base import lengths


@dataclass(frozen=True)
class RelativeLength:
    weight: float
    warmup_versions: int  # number of first versions without the term

    name = "relative_length"
    subtracts = True

    def __post_init__(self):
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be a positive number, not {self.weight}")
        if not self.warmup_versions >= 0:
            raise ValueError(f"warmup_versions must not be negative, but is {self.warmup_versions}")

    def __call__(self, rollouts: Sequence[Rollout], version: int) -> np.ndarray:
        length = lengths(rollouts)  # [G]
        if version < self.warmup_versions or len(np.unique(length)) < 2:
            return np.zeros_like(length)
        lam = 0.5 - (length - length.min()) / (length.max() - length.min())
        correct = np.array([rollout.success == 1.0 for rollout in rollouts])
        return self.weight * np.where(correct, lam, np.minimum(0.0, lam))
