"""Two-sided clipping: PPO's clip with an upper bound δ on the ratio for negative advantages.

    J = Σ_tokens  w · min(min(r, δ) A, clip(r, 1 − ε_low, 1 + ε_high) A),    δ > 1 + ε_high

For A < 0, large ratios would otherwise give large updates. For A ≥ 0 it is ppo_clip.
Source: INTELLECT-2, arXiv 2505.07291, two-sided GRPO clipping; ε = 0.2 and δ = 4 in §4.1.
"""

from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, count, log_ratio, ratio
from pipelinerl.objectives.clipping import check_epsilons, clip_is_active


@dataclass(frozen=True)
class TwoSidedClip:
    whole_rollouts = False

    epsilon_low: float
    epsilon_high: float
    delta: float

    def __post_init__(self):
        check_epsilons(self.epsilon_low, self.epsilon_high)
        if not self.delta > 1 + self.epsilon_high:
            raise ValueError(
                f"delta must exceed 1 + epsilon_high = {1 + self.epsilon_high}, not {self.delta}"
            )

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        r = ratio(log_ratio(scores, batch))
        advantages = batch.advantages  # [T]
        clipped = r.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        objective = torch.minimum(r.clamp(max=self.delta) * advantages, clipped * advantages)
        active = clip_is_active(r, advantages, self.epsilon_low, self.epsilon_high)
        active |= (r > self.delta) & (advantages < 0)
        return -(objective * batch.loss_weights).sum(), {"clip_fraction": count(active, batch)}
