"""GSPO: one ratio and one clip per rollout.

    J = Σ_rollouts  w · min(s A, clip(s, 1 − ε_low, 1 + ε_high) A),    s = exp(mean over tokens of log r)

w is the mean weight of a rollout's tokens: 1/B by default, as in the paper. A is the mean of their
advantages, which are equal unless each turn has its own. s is computed over all sequences of a rollout.
Source: arXiv 2507.18071, eq. 5 to 7; ε = 3e-4 and 4e-4 (§5.1).
"""

from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import (
    TokenSums,
    count,
    log_ratio,
    per_rollout,
    ratio,
    rollout_lengths,
    rollout_weights,
)
from pipelinerl.objectives.clipping import check_epsilons, clip_is_active, clipped_surrogate


@dataclass(frozen=True)
class Gspo:
    epsilon_low: float
    epsilon_high: float

    def __post_init__(self):
        check_epsilons(self.epsilon_low, self.epsilon_high)

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        lengths = rollout_lengths(batch)  # [R]
        s = ratio(per_rollout(log_ratio(scores, batch), batch) / lengths)
        advantages = per_rollout(batch.advantages, batch) / lengths
        objective = clipped_surrogate(s, advantages, self.epsilon_low, self.epsilon_high)
        active = clip_is_active(s, advantages, self.epsilon_low, self.epsilon_high)
        loss = -(objective * rollout_weights(batch)).sum()
        return loss, {"clip_fraction": count(active[batch.rollout_ids], batch)}
