"""Target length: a penalty on the distance to the length that the prompt asks for.

    −α |L* − L|

L* is `metrics["target_length"]`, which `domains/target_length.py` records.
Source: L1, arXiv 2503.04697, eq. 1; INTELLECT-2, arXiv 2505.07291, length rewards; α = 3e-4 in both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from contracts.records import Rollout
from pipelinerl.rewards.base import lengths


@dataclass(frozen=True)
class TargetLength:
    alpha: float  # reward per token

    name = "target_length"
    subtracts = True

    def __post_init__(self):
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha must be a positive number, not {self.alpha}")

    def __call__(self, rollouts: Sequence[Rollout], version: int) -> np.ndarray:
        targets = np.array([_target(rollout) for rollout in rollouts], dtype=np.float64)
        return -self.alpha * np.abs(targets - lengths(rollouts))


def _target(rollout: Rollout) -> float:
    try:
        return rollout.metrics["target_length"]
    except KeyError:
        raise ValueError(
            f"domain {rollout.domain} states no target_length for problem {rollout.problem_id}; "
            "wrap it in pipelinerl.domains.target_length.TargetLength, or take the reward target_length out"
        ) from None
