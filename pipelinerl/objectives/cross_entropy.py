"""Cross-entropy of the answers, for supervised fine-tuning. Advantages are not used.

    J = Σ_tokens  w · log π

With `normalisation=tokens` it is the mean over the step's tokens, as is usual.
"""

from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums


@dataclass(frozen=True)
class CrossEntropy:
    whole_rollouts = False
    needs_no_advantage = True
    learns_from_demonstrations = 1  # answers to a problem

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        in_loss = scores.logprobs.where(batch.loss_mask, 0.0)
        return -(in_loss * batch.loss_weights).sum(), {"cross_entropy": -in_loss.detach().sum()}
