"""REINFORCE with truncated importance weights: the PipelineRL paper's objective.

    J = Σ_tokens  w · sg(min(r, c)) · A · log π

Source: arXiv 2509.19128, §2.1, eq. 5, and §5 (c = 5). The ratio is per token, as in the paper's code.
"""

import math
from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, count, log_ratio


@dataclass(frozen=True)
class Reinforce:
    whole_rollouts = False

    max_importance_weight: float  # c

    def __post_init__(self):
        if not 0 < self.max_importance_weight < math.inf:
            raise ValueError(f"max_importance_weight must be positive, not {self.max_importance_weight}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        ratio = log_ratio(scores, batch).detach().exp()  # [T]
        weight = ratio.clamp(max=self.max_importance_weight)
        objective = weight * batch.advantages * scores.logprobs
        truncated = count(ratio > self.max_importance_weight, batch)
        return -(objective * batch.loss_weights).sum(), {"clip_fraction": truncated}
