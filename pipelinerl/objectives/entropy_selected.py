"""Applies any objective to the tokens of each rollout at which the policy has the highest entropy.

    J = J_policy with the weights  w · n / s · 1[H ≥ h]

H is the entropy of π at a token, without gradient. h is the ⌈share · n⌉-th largest entropy of the rollout's n
tokens in the loss; ties are selected too. Other tokens remain in the loss with the weight 0, so lengths do
not change. s is the number of selected tokens, so the sum of a rollout's weights does not change. With
`normalisation=rollout_tokens` the loss is the mean over the selected tokens.

In the paper h is a threshold over a batch, and in its code over a micro-batch. Its gradient depends on the
division of a step; here it does not, because a rollout is in one micro-batch. But the same share of tokens is
selected in every rollout, even in one of low entropy.
Source: arXiv 2506.01939, eq. 6; share = 0.2 (§5.2), around the objective of DAPO.
"""

from dataclasses import dataclass, replace

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import Objective, TokenSums, per_rollout, rollout_lengths
from pipelinerl.objectives.nesting import nested


@dataclass(frozen=True)
class EntropySelected:
    policy: Objective
    share: float  # of a rollout's tokens

    def __post_init__(self):
        if not callable(self.policy):
            raise ValueError("policy must be an objective, with its own _target_")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, not {self.share}")
        if getattr(self.policy, "learned_baseline", False):
            raise ValueError("tokens are selected inside value_baseline, as its policy: its value is of all")
        for inner in nested(self.policy):
            if isinstance(inner, EntropySelected):
                raise ValueError("entropy_selected inside entropy_selected: once is enough")
            if getattr(inner, "term_of_rollout", False):
                name = type(inner).__name__
                raise ValueError(f"{name} has one term a rollout, of which no tokens can be selected")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        entropy = scores.entropy.detach().where(batch.loss_mask, -torch.inf)
        lengths = rollout_lengths(batch)
        least = _ranked(entropy, batch, (lengths.double() * self.share - 1e-9).ceil().long())
        selected = ((entropy >= least[batch.rollout_ids]) & batch.loss_mask).to(batch.loss_weights.dtype)
        scale = lengths / per_rollout(selected, batch).clamp(min=1)  # [R]
        weights = batch.loss_weights * selected * scale[batch.rollout_ids]
        loss, sums = self.policy(scores, replace(batch, loss_weights=weights))
        return loss, {**sums, "selected_by_entropy": selected.sum()}


def _ranked(values: torch.Tensor, batch: PackedBatch, ranks: torch.Tensor) -> torch.Tensor:
    """Returns the value of a given rank in each rollout; rank 1 is the largest: [T], [R] -> [R]."""
    descending = values.argsort(descending=True)
    by_rollout = descending[batch.rollout_ids[descending].argsort(stable=True)]
    tokens = batch.rollout_ids.bincount(minlength=batch.num_rollouts)
    first = tokens.cumsum(0) - tokens
    return values[by_rollout[first + ranks - 1]]
