"""Any objective with rules that weigh or mask what was sampled too far from the trained policy.

    J = J_policy with the weights  w · Π_rules f(log ρ)

A rule's factor f is held fixed. A masked token stays in the loss with the weight 0, so neither lengths nor
the means over a rollout change. `around` says what ρ is:

* behaviour: ρ = π/μ, and the objective inside is unchanged. Its own ratio is π/μ already, so a rule that
  weighs by ρ is refused here.
* proximal: ρ = π_prox/μ, and the objective inside takes π_prox for μ. The rule corrects for lag and for what
  the engine computes in another way; the objective clips what the step's own updates change. In the first
  of a step's `epochs`, π_prox is π.

Source: TRL (`vllm_importance_sampling_mode`) and verl (`rollout_correction`) weigh any objective so, around
the proximal policy. verl takes masked tokens out of the denominator of the loss as well; here they stay in
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import (
    Base,
    Objective,
    TokenSums,
    check_base,
    count,
    proximal_logprobs,
)
from pipelinerl.objectives.rules import Rule


@dataclass(frozen=True)
class Masked:
    policy: Objective
    rules: Sequence[Rule]
    around: Base

    def __post_init__(self):
        if not callable(self.policy):
            raise ValueError("policy must be an objective, with its own _target_")
        if getattr(self.policy, "learned_baseline", False):
            raise ValueError("rules go inside value_baseline, as its policy: its value loss is not masked")
        check_base(self.around, "around")
        for rule in self.rules:
            self._check(rule)
        names = [rule.name for rule in self.rules]
        if len(names) > len(set(names)):
            raise ValueError(f"two rules have the same name, of {', '.join(names)}")

    def _check(self, rule: Rule) -> None:
        if not callable(rule):
            raise ValueError("each of rules must be a rule, with its own _target_")
        name = type(rule).__name__
        if self.term_of_rollout and not rule.of_rollout:
            policy = type(self.policy).__name__
            raise ValueError(
                f"{policy} has one term a rollout, and {name} weighs tokens: take a rule of rollouts"
            )
        if self.around == "behaviour" and rule.weighs:
            raise ValueError(f"{name} would count π/μ twice around behaviour: set around=proximal")

    @property
    def term_of_rollout(self) -> bool:
        return getattr(self.policy, "term_of_rollout", False)

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        proximal = proximal_logprobs(scores, batch)
        sampled_as = scores.logprobs.detach() if self.around == "behaviour" else proximal
        log_rho = (sampled_as - batch.behaviour_logprobs).where(batch.loss_mask, 0.0)
        weights = batch.loss_weights
        masked: TokenSums = {}
        for rule in self.rules:
            factor = rule(log_rho, batch)
            weights = weights * factor.values
            masked[f"masked_{rule.name}"] = count(factor.bound, batch)
        weighed = replace(batch, loss_weights=weights)
        if self.around == "proximal":
            weighed = replace(weighed, behaviour_logprobs=proximal)
        loss, sums = self.policy(scores, weighed)
        return loss, sums | masked
