"""Applies rules to any objective, which weigh or mask tokens that were sampled too far from the trained
policy.

    J = J_policy with the weights  w · Π_rules f(log ρ)

A rule's factor f has no gradient. A masked token remains in the loss with the weight 0, so lengths and means
over a rollout do not change. `around` selects ρ:

* behaviour: ρ = π/μ. The inner objective, whose ratio is π/μ too, is unchanged, so rules that weigh by ρ are
  refused.
* proximal: ρ = π_prox/μ, and π_prox replaces μ in the inner objective. The rules correct for lag and for the
  numerical mismatch between engine and trainer; the objective clips the changes of the step's updates. In the
  first of a step's `epochs`, π_prox is π, so its ratio is 1 and nothing is clipped.

Source: TRL (`vllm_importance_sampling_mode`) and verl (`rollout_correction`), around the proximal policy.
verl also excludes masked tokens from the denominator of the loss.
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
from pipelinerl.objectives.nesting import nested
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
        if any(isinstance(inner, Masked) for inner in nested(self.policy)):
            raise ValueError("masked inside masked: put all rules into one list")
        check_base(self.around, "around")
        if not isinstance(self.rules, list | tuple):
            raise ValueError("rules is a list of rules, each with its own _target_")
        for rule in self.rules:
            self._check(rule)
        names = [rule.name for rule in self.rules]
        if len(names) > len(set(names)):
            raise ValueError(f"each of rules may be there once, and they are {', '.join(names)}")

    def _check(self, rule: Rule) -> None:
        if not (callable(rule) and all(hasattr(rule, name) for name in ("name", "of_rollout", "weighs"))):
            raise ValueError("each of rules must be a rule (objectives/rules.py), with its own _target_")
        name = type(rule).__name__
        for inner in nested(self.policy):
            if getattr(inner, "term_of_rollout", False) and not rule.of_rollout:
                why = f"{type(inner).__name__} has one term a rollout, and {name} weighs tokens"
                raise ValueError(f"{why}: take a rule of rollouts, such as SequenceTruncate")
        if self.around == "behaviour" and rule.weighs:
            raise ValueError(f"{name} would count π/μ twice around behaviour: set around=proximal")

    @property
    def whole_rollouts(self) -> bool:
        return any(rule.of_rollout for rule in self.rules)

    @property
    def advantage_of_rollout(self) -> bool:
        return getattr(self.policy, "advantage_of_rollout", False)

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
