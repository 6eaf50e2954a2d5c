"""What an objective is, and what is reported of every one.

An objective is a callable: (scores, batch) -> (loss, token sums). The loss is this micro-batch's
share of the step's: a sum over its tokens divided by the denominator that travels in the batch, so
the step's gradient does not depend on how the step was cut.
"""

from typing import Protocol

import torch

from contracts.trainer import PackedBatch, TokenScores

TokenSums = dict[str, torch.Tensor]  # name -> scalar; summed over micro-batches and ranks, then / tokens


class Objective(Protocol):
    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]: ...


def log_ratio(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    """[T] log π(token) − log μ(token), where π is the trainer's policy and μ sampled the token."""
    return scores.logprobs - batch.behaviour_logprobs
