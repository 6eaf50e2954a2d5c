"""A regulariser: a bonus for the exact entropy of π at each token.

    L = −α · Σ_tokens  w · H(π(· | before))

Source: PPO, arXiv 1707.06347, eq. 9; A3C, arXiv 1602.01783, §4.
"""

import math
from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums


@dataclass(frozen=True)
class EntropyBonus:
    whole_rollouts = False

    coefficient: float  # α

    def __post_init__(self):
        if not 0 < self.coefficient < math.inf:
            raise ValueError(f"coefficient must be positive, not {self.coefficient}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        return -self.coefficient * (scores.entropy * batch.loss_weights).sum(), {}
