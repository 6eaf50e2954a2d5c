"""CISPO: clips the importance weight instead of the gradient of a token.

    J = Σ_tokens  w · sg(clip(r, 1 − ε_low, 1 + ε_high)) · A · log π

Source: MiniMax-M1, arXiv 2506.13585, eq. 4 and 5. The paper has no lower bound (ε_low = 1), and does not
state its ε_high.
"""

from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, count, log_ratio
from pipelinerl.objectives.clipping import check_epsilons


@dataclass(frozen=True)
class Cispo:
    whole_rollouts = False

    epsilon_low: float
    epsilon_high: float

    def __post_init__(self):
        check_epsilons(self.epsilon_low, self.epsilon_high)

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        ratio = log_ratio(scores, batch).detach().exp()  # [T]
        weight = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        objective = weight * batch.advantages * scores.logprobs
        return -(objective * batch.loss_weights).sum(), {"clip_fraction": count(weight != ratio, batch)}
