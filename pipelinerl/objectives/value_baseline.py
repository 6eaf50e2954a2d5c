"""Applies any objective with a learned baseline: advantages of the value head by GAE, and a value loss.

    A = GAE(λ) of V_0,    T = V_0 + GAE(λ_value) of V_0,    L = L_policy(A) + β · Σ_tokens  w · ½ (V − T)²

The return R is the advantage in the records (`advantage=value` leaves rewards unchanged). V is the value
head's prediction before each token, and V_0 that before the step's first update. So A is equal in all of a
step's `epochs`. By default λ = λ_value = 1, with A = R − V_0 and T = R. `gae.py` defines GAE over several
turns and masked tokens. With `value_clip` ε, the value loss is

    ½ max((V − T)², (V_0 + clip(V − V_0, −ε, ε) − T)²)

Source: GAE, arXiv 1506.02438, with λ = γ = 1 in Open-Reasoner-Zero, arXiv 2503.24290, §2.2. λ_value is of
VAPO, arXiv 2504.05118, and the value clip of openai/baselines, ppo2.
"""

import math
from dataclasses import dataclass, replace

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import Objective, TokenSums
from pipelinerl.objectives.gae import later_errors


@dataclass(frozen=True)
class ValueBaseline:
    """The trainer needs a value head (`trainer.value_head=true`)."""

    needs_values = True
    learned_baseline = True

    policy: Objective
    coefficient: float  # β
    value_clip: float | None = None  # ε
    gae_lambda: float = 1.0  # λ
    value_lambda: float = 1.0  # λ_value, for the value's target

    def __post_init__(self):
        for name in ("gae_lambda", "value_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        if self.value_clip is not None and not 0 < self.value_clip < math.inf:
            raise ValueError(f"value_clip must be positive, or null, not {self.value_clip}")
        if not callable(self.policy):
            raise ValueError("policy must be an objective, with its own _target_")
        if getattr(self.policy, "learned_baseline", False):
            raise ValueError("one value baseline is enough: take another policy inside")
        if not 0 < self.coefficient < math.inf:
            raise ValueError(f"coefficient must be positive, not {self.coefficient}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        if scores.values is None:
            raise ValueError("the trainer has no value head: set trainer.value_head=true")
        returns = batch.advantages
        values = scores.values
        initial = values.detach() if batch.start_values is None else batch.start_values
        errors = (returns - initial).where(batch.loss_mask, 0.0)
        advantages = errors - later_errors(errors, batch, self.gae_lambda)
        loss, sums = self.policy(scores, replace(batch, advantages=advantages))
        targets = returns - later_errors(errors, batch, self.value_lambda)
        squared = (values - targets).where(batch.loss_mask, 0.0).square()
        worse = squared
        if self.value_clip is not None:
            near = initial + (values - initial).clamp(-self.value_clip, self.value_clip)
            worse = torch.maximum(squared, (near - targets).where(batch.loss_mask, 0.0).square())
        value_loss = 0.5 * (worse * batch.loss_weights).sum()
        return loss + self.coefficient * value_loss, {**sums, "value_error": squared.detach().sum()}
