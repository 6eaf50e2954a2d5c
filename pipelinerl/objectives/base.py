"""What an objective is, and what is reported of every one.

An objective is a callable: (scores, batch) -> (loss, token sums). The loss is this micro-batch's share of the
step's: each token's term times its weight. The weights, `batch.loss_weights`, hold the normalisation over the
whole step. So the step's gradient does not depend on how the step was cut.

Notation in all of them: π is the trainer's policy, μ the one that sampled the token, r = π/μ, and A the
advantage. w is the weight of a token in the step's loss: 1/B by default, for B rollouts of the step. sg stops
the gradient. J is maximised; the loss is −J.
"""

from typing import Protocol

import torch

from contracts.trainer import PackedBatch, TokenScores

TokenSums = dict[str, torch.Tensor]  # name -> scalar; summed over micro-batches and ranks, then / tokens


class Objective(Protocol):
    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]: ...


def log_ratio(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    """[T] log π(token) − log μ(token); 0 where the token is not in the loss."""
    return (scores.logprobs - batch.behaviour_logprobs).where(batch.loss_mask, 0.0)


MAX_LOG_RATIO = 20.0  # beyond, exp overflows float32 sooner or later, and inf · 0 is no gradient


def ratio(log_r: torch.Tensor) -> torch.Tensor:
    """exp(log_r), with no gradient and no more growth above MAX_LOG_RATIO; elementwise."""
    return log_r.clamp(max=MAX_LOG_RATIO).exp()


def per_rollout(values: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """[T] -> [R]: sums over the tokens of each rollout that are in the loss. A rollout's sequences are
    all in one micro-batch."""
    masked = values.where(batch.loss_mask, 0.0)
    return masked.new_zeros(batch.num_rollouts).index_add(0, batch.rollout_ids, masked)


def rollout_lengths(batch: PackedBatch) -> torch.Tensor:
    """[R] tokens in the loss, at least 1."""
    return per_rollout(torch.ones_like(batch.loss_weights), batch).clamp(min=1)


def rollout_weights(batch: PackedBatch) -> torch.Tensor:
    """[R] the mean weight of a rollout's tokens: 1/B in the default normalisation. A term that a rollout
    has once counts by it."""
    return per_rollout(batch.loss_weights, batch) / rollout_lengths(batch)


def count(tokens: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """How many of the tokens [T] bool are in the loss."""
    return (tokens & batch.loss_mask).sum()
