"""Direct preference optimisation (DPO): raises the probability of preferred over rejected answers.

    J = Σ_pairs  w · log σ(β · h),    h = Σ_tokens of the pair  A · (log π − log π_ref)

A pair is one rollout of two sequences. A is 1 for the tokens of the preferred answer, and -1 for those of the
rejected one (`credit=completion`). w is the weight of a rollout. π_ref is the policy of the reference server.
Source: DPO, arXiv 2305.18290, eq. 7.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, per_rollout, reference_logprobs, rollout_weights


@dataclass(frozen=True)
class Dpo:
    needs_reference = True
    needs_no_advantage = True
    term_of_rollout = True
    learns_from_demonstrations = 2  # answers to a problem

    beta: float  # β

    def __post_init__(self):
        if not 0 < self.beta < math.inf:
            raise ValueError(f"beta must be positive, not {self.beta}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        reference = reference_logprobs(scores, batch)
        margins = self.beta * per_rollout(batch.advantages * (scores.logprobs - reference), batch)  # [R]
        loss = -(logsigmoid(margins) * rollout_weights(batch)).sum()
        of_tokens = margins.detach()[batch.rollout_ids].where(batch.loss_mask, 0.0)
        return loss, {"preference_margin": of_tokens.sum(), "preferred": (of_tokens > 0).sum()}
