"""Online policy mirror descent of Kimi k1.5, with a squared penalty on the log ratio of a rollout.

    J = Σ_rollouts  w · ( Σ_tokens A log π  −  τ/2 · (Σ_tokens log r)² )

With A = r_j − mean of the group's rewards (`advantage=group_mean`, without std) and w = 1/B, the gradient is
the paper's. `base` is the denominator of r. In the paper it is the policy at the start of an iteration, which
also samples. Here it is `behaviour`, the policy that sampled, or `proximal`, the policy at the start of the
step, which needs several `epochs`. They differ by lag and by the mismatch between engine and trainer. The
paper resets the optimizer at every iteration (`reset_optimizer_every=1`), useful with several updates.
Source: arXiv 2501.12599, §2.3.2, eq. 3. The paper does not state τ. The metric `mirror_penalty` is the sum of
the squares per token of the step.
"""

import math
from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import (
    Base,
    TokenSums,
    check_base,
    log_ratio,
    per_rollout,
    rollout_weights,
)


@dataclass(frozen=True)
class MirrorDescent:
    term_of_rollout = True
    advantage_of_rollout = False  # each token has its own, times its log-probability

    tau: float
    base: Base = "behaviour"

    def __post_init__(self):
        if not 0 < self.tau < math.inf:
            raise ValueError(f"tau must be positive, not {self.tau}")
        check_base(self.base)

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        surrogate = per_rollout(batch.advantages * scores.logprobs, batch)  # [R]
        penalty = per_rollout(log_ratio(scores, batch, self.base), batch).square()
        objective = surrogate - self.tau / 2 * penalty
        return -(objective * rollout_weights(batch)).sum(), {"mirror_penalty": penalty.detach().sum()}
