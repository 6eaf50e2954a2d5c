"""Decoupled PPO: clips around the proximal policy, and corrects for the behaviour policy by a weight.

    J = Σ_tokens  w · (π_prox / μ) · min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A) · 1[π_prox / μ ≤ cap]
    ρ = π / π_prox

π_prox is the policy at the start of the step. In the first of a step's `epochs`, ρ is 1, and the gradient
is that of plain importance sampling. The clip is active from the second epoch on. Only the cap bounds the
behaviour weight π_prox / μ. ρ is at most e^20.
Source: AReaL, arXiv 2505.24298, §5.2, eq. 5 (ε = 0.2), after arXiv 2110.00641. The cap is
behav_imp_weight_cap = 5 in AReaL's code.
"""

import math
from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, count, log_ratio, proximal_logprobs, ratio
from pipelinerl.objectives.clipping import check_epsilons, clip_is_active, clipped_surrogate


@dataclass(frozen=True)
class DecoupledPpo:
    whole_rollouts = False

    epsilon_low: float
    epsilon_high: float
    max_behaviour_weight: float  # the cap

    def __post_init__(self):
        check_epsilons(self.epsilon_low, self.epsilon_high)
        if not 1 < self.max_behaviour_weight < math.inf:
            raise ValueError(f"max_behaviour_weight must be above 1, not {self.max_behaviour_weight}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        proximal = proximal_logprobs(scores, batch)
        behaviour_weight = ratio((proximal - batch.behaviour_logprobs).where(batch.loss_mask, 0.0))  # [T]
        rho = ratio(log_ratio(scores, batch, "proximal"))
        surrogate = clipped_surrogate(rho, batch.advantages, self.epsilon_low, self.epsilon_high)
        active = clip_is_active(rho, batch.advantages, self.epsilon_low, self.epsilon_high)
        beyond = behaviour_weight > self.max_behaviour_weight
        objective = (behaviour_weight * surrogate).where(~beyond, 0.0)
        loss = -(objective * batch.loss_weights).sum()
        return loss, {"clip_fraction": count(active | beyond, batch)}
