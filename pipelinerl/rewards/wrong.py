"""Wrong: a penalty for an answer that is not right.

    −penalty   if `success` is not 1

If a domain rewards right answers with 1 and wrong ones with 0, a penalty of 1 gives 1 and −1.
Source: DAPO, arXiv 2503.14476.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.records import Rollout


@dataclass(frozen=True)
class Wrong:
    penalty: float

    name = "wrong"
    subtracts = True

    def __post_init__(self):
        if not 0 < self.penalty < math.inf:
            raise ValueError(f"penalty must be a positive number, not {self.penalty}")

    def __call__(self, rollouts: Sequence[Rollout], version: int) -> np.ndarray:
        right = np.array([rollout.success == 1.0 for rollout in rollouts], dtype=bool)
        return np.where(right, 0.0, -self.penalty)
