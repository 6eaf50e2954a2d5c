"""A regulariser: a penalty on the squared log ratio, the token-level form of mirror_descent's penalty.

    L = κ · Σ_tokens  w · (log r)²

Source: Kimi K2.5, arXiv 2602.02276; prime-rl adds it to its masked objectives (`kl_tau`, 1e-3 in April 2026).
"""

import math
from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, log_ratio


@dataclass(frozen=True)
class LogRatioPenalty:
    whole_rollouts = False

    coefficient: float  # κ

    def __post_init__(self):
        if not 0 < self.coefficient < math.inf:
            raise ValueError(f"coefficient must be positive, not {self.coefficient}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        squared = log_ratio(scores, batch).square()  # [T]
        loss = self.coefficient * (squared * batch.loss_weights).sum()
        return loss, {"squared_log_ratio": squared.detach().sum()}
