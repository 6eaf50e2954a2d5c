"""A regulariser: a penalty on the distance to a reference policy, by the k3 estimator of the KL divergence.

    L = β · Σ_tokens  w · (exp(d) − d − 1),    d = log ref − log π, at most 20

Source: Schulman, "Approximating KL divergence" (2020), k3; GRPO, arXiv 2402.03300, eq. 4.
"""

import math
from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import MAX_LOG_RATIO, TokenSums


@dataclass(frozen=True)
class KlToReference:
    """The penalty. It needs a `reference` server, which scores every token with the run's initial model."""

    needs_reference = True

    coefficient: float  # β

    def __post_init__(self):
        if not 0 < self.coefficient < math.inf:
            raise ValueError(f"coefficient must be positive, not {self.coefficient}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        if batch.reference_logprobs is None:
            if batch.num_tokens:
                raise ValueError("tokens without reference log-probabilities: set reference=transformers")
            return 0.0 * scores.logprobs.sum(), {"kl_to_reference": scores.logprobs.new_zeros(())}
        d = (batch.reference_logprobs - scores.logprobs).where(batch.loss_mask, 0.0).clamp(max=MAX_LOG_RATIO)
        k3 = d.exp() - d - 1  # [T]
        loss = self.coefficient * (k3 * batch.loss_weights).sum()
        return loss, {"kl_to_reference": k3.detach().sum()}
