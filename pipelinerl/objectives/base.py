"""The interface of objectives, and shared functions.

An objective is a callable: (scores, batch) -> (loss, token sums). The loss is this micro-batch's part of the
step's loss: the sum of each token's term times its weight. The weights, `batch.loss_weights`, contain the
normalisation over the step. So the step's gradient does not depend on its division into micro-batches.

Notation in all objectives: π is the trainer's policy, μ the policy that sampled the token, r = π/μ, and A the
advantage. w is the weight of a token in the step's loss: 1/B by default, for B rollouts in the step. sg stops
the gradient. J is maximised; the loss is −J.
"""

from typing import Literal, Protocol

import torch

from contracts.trainer import PackedBatch, TokenScores

TokenSums = dict[str, torch.Tensor]  # name -> scalar; summed over micro-batches and ranks, then / tokens


class Objective(Protocol):
    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]: ...


Base = Literal["behaviour", "proximal"]  # the policy in the denominator of a ratio


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")


def check_base(base: str, name: str = "base") -> None:
    if base not in ("behaviour", "proximal"):
        raise ValueError(f"{name} must be behaviour or proximal, not {base!r}")


def sampled(batch: PackedBatch) -> torch.Tensor:
    """Returns a mask [T] of the tokens in the loss that a server has sampled. Others have no μ."""
    return batch.loss_mask & (batch.versions >= 0)


def log_ratio(scores: TokenScores, batch: PackedBatch, base: Base = "behaviour") -> torch.Tensor:
    """Returns log π(token) − log base(token): [T], 0 for tokens that are not in the loss.

    With the behaviour policy as base, it is 0 also for tokens that no server sampled.
    """
    if base == "proximal":
        return (scores.logprobs - proximal_logprobs(scores, batch)).where(batch.loss_mask, 0.0)
    return (scores.logprobs - batch.behaviour_logprobs).where(sampled(batch), 0.0)


def proximal_logprobs(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    """Returns log π_prox [T], without gradient. π_prox is the policy at the start of the step.

    In the first of a step's `epochs` it is π.
    """
    return scores.logprobs.detach() if batch.proximal_logprobs is None else batch.proximal_logprobs


def reference_logprobs(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    """Returns the reference's log-probabilities [T], without gradient. Raises ValueError without any."""
    if batch.reference_logprobs is not None:
        return batch.reference_logprobs
    if batch.num_tokens:
        raise ValueError("tokens without reference log-probabilities: set reference=transformers")
    return scores.logprobs.detach()


MAX_LOG_RATIO = 20.0  # exp would overflow float32 far above it, and inf · 0 gives a NaN gradient


def ratio(log_r: torch.Tensor) -> torch.Tensor:
    """Returns exp(log_r), elementwise; e^20 = 4.9e8 without gradient above MAX_LOG_RATIO."""
    return log_r.clamp(max=MAX_LOG_RATIO).exp()


def per_rollout(values: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """Returns the sum over each rollout's tokens in the loss: [T] -> [R].

    All sequences of a rollout are in one micro-batch, unless `packing.split_rollouts` is true.
    """
    masked = values.where(batch.loss_mask, 0.0)
    return masked.new_zeros(batch.num_rollouts).index_add(0, batch.rollout_ids, masked)


def rollout_minimum(values: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """Returns the minimum over each rollout's tokens in the loss, +inf if there are none: [T] -> [R]."""
    masked = values.where(batch.loss_mask, torch.inf)
    none = masked.new_full((batch.num_rollouts,), torch.inf)
    return none.scatter_reduce(0, batch.rollout_ids, masked, "amin")


def rollout_lengths(batch: PackedBatch) -> torch.Tensor:
    """Returns the number of each rollout's tokens in the loss, at least 1: [R]."""
    return per_rollout(torch.ones_like(batch.loss_weights), batch).clamp(min=1)


def rollout_weights(batch: PackedBatch) -> torch.Tensor:
    """Returns the mean weight of each rollout's tokens, for terms per rollout: [R], 1/B by default."""
    return per_rollout(batch.loss_weights, batch) / rollout_lengths(batch)


def count(tokens: torch.Tensor, batch: PackedBatch) -> torch.Tensor:
    """Returns the number of tokens in the loss that a mask [T] selects."""
    return (tokens & batch.loss_mask).sum()
