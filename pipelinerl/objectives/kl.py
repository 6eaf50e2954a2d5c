"""A regulariser: a penalty on KL(π‖ref), the divergence from a reference policy, estimated on sampled tokens.

    L = β · Σ_tokens  w · r · k(x),    x = log π − log ref
    k1 = x,    k2 = x² / 2,    k3 = exp(−x) + x − 1, where −x is at most 20

Tokens were sampled by μ instead of π. With `unbiased`, the importance weight r = π/μ corrects for that. The
expected gradient is then that of each token's KL(π‖ref), given the tokens before it. r has a gradient in k1
and k3, but not in k2. Without `unbiased`, r is 1. Then k2's gradient is correct only if μ = π, k3's is never
correct, and k1's is 0, so k1 is refused. r is at most e^20.
Source: Schulman, "Approximating KL divergence" (2020): k1, k2, k3. GRPO, arXiv 2402.03300, eq. 4, has k3
without r; DeepSeek-V3.2, arXiv 2512.02556, §3.1, has it with r.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import (
    MAX_LOG_RATIO,
    TokenSums,
    check_flag,
    log_ratio,
    ratio,
    reference_logprobs,
)


@dataclass(frozen=True)
class KlToReference:
    whole_rollouts = False
    needs_reference = True

    coefficient: float  # β
    estimator: Literal["k1", "k2", "k3"] = "k3"
    unbiased: bool = True

    def __post_init__(self):
        if not 0 < self.coefficient < math.inf:
            raise ValueError(f"coefficient must be positive, not {self.coefficient}")
        if self.estimator not in ("k1", "k2", "k3"):
            raise ValueError(f"estimator must be k1, k2 or k3, not {self.estimator!r}")
        check_flag("unbiased", self.unbiased)
        if self.estimator == "k1" and not self.unbiased:
            raise ValueError("k1 without the importance weight has no gradient on average: set unbiased=true")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        reference = reference_logprobs(scores, batch)
        divergence = self._estimate((scores.logprobs - reference).where(batch.loss_mask, 0.0))
        if self.unbiased:
            r = ratio(log_ratio(scores, batch))
            divergence = divergence * (r.detach() if self.estimator == "k2" else r)
        loss = self.coefficient * (divergence * batch.loss_weights).sum()
        return loss, {"kl_to_reference": divergence.detach().sum()}

    def _estimate(self, x: torch.Tensor) -> torch.Tensor:
        match self.estimator:
            case "k1":
                return x
            case "k2":
                return x.square() / 2
        d = (-x).clamp(max=MAX_LOG_RATIO)
        return d.exp() - d - 1
