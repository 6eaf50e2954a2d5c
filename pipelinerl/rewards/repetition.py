"""Repetition: a penalty for a rollout that was stopped because it repeated itself (`rollout.repetition`).

−penalty   if metrics["repetition"] is 1
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.records import Rollout


@dataclass(frozen=True)
class Repetition:
    penalty: float

    needs_repetition = True
    name = "repetition"
    subtracts = True

    def __post_init__(self):
        if not 0 < self.penalty < math.inf:
            raise ValueError(f"penalty must be a positive number, not {self.penalty}")

    def __call__(self, rollouts: Sequence[Rollout], version: int) -> np.ndarray:
        stopped = np.array([rollout.metrics.get("repetition") == 1.0 for rollout in rollouts], dtype=bool)
        return np.where(stopped, -self.penalty, 0.0)
