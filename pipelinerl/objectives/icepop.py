"""IcePop: masks tokens whose ratio is out of bounds on either side.

    J = Σ_tokens  w · r A · 1[low ≤ r ≤ high]

The bounds are applied in log space, because a ratio that overflows gives inf · 0 in the gradient.
Source: INTELLECT-3, arXiv 2512.16144, §3.3 (low = 0.5, high = 5), after IcePop (Ling team, 2025). The paper
also masks every rollout that has a token with r < 1e-5: `objective=masked` with the rule SmallestRatio.
"""

import math
from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, count, log_ratio


@dataclass(frozen=True)
class IcePop:
    whole_rollouts = False

    low: float
    high: float

    def __post_init__(self):
        if not 0 < self.low < 1 < self.high < math.inf:
            raise ValueError(f"icepop needs 0 < low < 1 < high, not {self.low} and {self.high}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        log_r = log_ratio(scores, batch)  # [T]
        within = (log_r.detach() >= math.log(self.low)) & (log_r.detach() <= math.log(self.high))
        ratio = log_r.where(within, 0.0).exp()
        objective = (ratio * batch.advantages).where(within, 0.0)
        return -(objective * batch.loss_weights).sum(), {"clip_fraction": count(~within, batch)}
