"""The clipped surrogate of PPO and GRPO, with separate lower and upper bounds.

    J = Σ_tokens  w · min(r A, clip(r, 1 − ε_low, 1 + ε_high) A)

Source: PPO, arXiv 1707.06347, eq. 7 (ε = 0.2); GRPO, arXiv 2402.03300, eq. 3. A higher upper bound is called
clip-higher in DAPO, arXiv 2503.14476, §3.1 (0.2 and 0.28, §4.1). r is at most e^20, its only bound for A < 0.
"""

from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, count, log_ratio, ratio
from pipelinerl.objectives.clipping import check_epsilons, clip_is_active, clipped_surrogate


@dataclass(frozen=True)
class PpoClip:
    whole_rollouts = False

    epsilon_low: float
    epsilon_high: float

    def __post_init__(self):
        check_epsilons(self.epsilon_low, self.epsilon_high)

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        r = ratio(log_ratio(scores, batch))  # [T]
        objective = clipped_surrogate(r, batch.advantages, self.epsilon_low, self.epsilon_high)
        active = clip_is_active(r, batch.advantages, self.epsilon_low, self.epsilon_high)
        return -(objective * batch.loss_weights).sum(), {"clip_fraction": count(active, batch)}
