"""REINFORCE with truncated importance weights: the PipelineRL paper's objective.

    J = 1/B · Σ_tokens  sg(min(π/μ, c)) · A · log π

π is the trainer's policy, μ the one that sampled the token, sg stops the gradient, B counts the
rollouts of the step, and every token has equal weight. Source: arXiv 2509.19128, §3, c = 5.
"""

from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, log_ratio


@dataclass(frozen=True)
class Reinforce:
    max_importance_weight: float  # c

    def __post_init__(self):
        if not self.max_importance_weight > 0:
            raise ValueError(f"max_importance_weight must be positive, not {self.max_importance_weight}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        ratio = log_ratio(scores, batch).detach().exp()  # [T]
        weight = ratio.clamp(max=self.max_importance_weight)
        objective = weight * batch.advantages * scores.logprobs
        loss = -(objective * batch.loss_mask).sum() / batch.rollouts
        truncated = (ratio > self.max_importance_weight) & batch.loss_mask
        return loss, {"truncated_fraction": truncated.sum()}
