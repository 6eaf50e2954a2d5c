"""GSPO: one ratio and one clip per rollout.

    J = Σ_rollouts  w · min(s A, clip(s, 1 − ε_low, 1 + ε_high) A),    s = exp(mean over tokens of log r)

w is the mean weight of a rollout's tokens: 1/B by default, as in the paper. A is the mean of their
advantages, which differ only with credit per turn. s is computed over all sequences of a rollout, and is at
most e^20. With `by_token` (GSPO-token) each token keeps its advantage:

    J = Σ_rollouts  w · mean over tokens of min(s_t A_t, clip(s_t, 1 − ε_low, 1 + ε_high) A_t),
    s_t = sg(s) · π_t / sg(π_t)

`base` is the denominator of r. The paper's is `proximal`, the policy at the start of the step, which equals π
in the first of a step's `epochs`. With `behaviour`, s also contains the lag and the numerical mismatch
between engine and trainer, for which the paper's ε is tight. A mismatch of 0.02 nats per token clips 38 % of
the rollouts of 300 tokens, and 17 % of those of 3,000.
Source: arXiv 2507.18071, eq. 5 to 7, and 13 and 14 for tokens; ε = 3e-4 and 4e-4 (§5.1).
"""

from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import (
    Base,
    TokenSums,
    check_base,
    check_flag,
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
    term_of_rollout = True

    epsilon_low: float
    epsilon_high: float
    base: Base = "behaviour"
    by_token: bool = False

    def __post_init__(self):
        check_epsilons(self.epsilon_low, self.epsilon_high)
        check_base(self.base)
        check_flag("by_token", self.by_token)

    @property
    def advantage_of_rollout(self) -> bool:
        return not self.by_token

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        lengths = rollout_lengths(batch)  # [R]
        s = ratio(per_rollout(log_ratio(scores, batch, self.base), batch) / lengths)
        if self.by_token:
            return self._over_tokens(s, lengths, scores, batch)
        advantages = per_rollout(batch.advantages, batch) / lengths
        objective = clipped_surrogate(s, advantages, self.epsilon_low, self.epsilon_high)
        active = clip_is_active(s, advantages, self.epsilon_low, self.epsilon_high)
        loss = -(objective * rollout_weights(batch)).sum()
        return loss, {"clip_fraction": count(active[batch.rollout_ids], batch)}

    def _over_tokens(
        self, s: torch.Tensor, lengths: torch.Tensor, scores: TokenScores, batch: PackedBatch
    ) -> tuple[torch.Tensor, TokenSums]:
        moved = (scores.logprobs - scores.logprobs.detach()).where(batch.loss_mask, 0.0)
        own = moved.exp()  # 1, with the token's own gradient
        s = s.detach()[batch.rollout_ids] * own  # [T]
        objective = clipped_surrogate(s, batch.advantages, self.epsilon_low, self.epsilon_high)
        active = clip_is_active(s, batch.advantages, self.epsilon_low, self.epsilon_high)
        means = per_rollout(objective, batch) / lengths
        return -(means * rollout_weights(batch)).sum(), {"clip_fraction": count(active, batch)}
