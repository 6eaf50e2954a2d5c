"""DPPO and IPO: mask tokens whose probability has moved too far, instead of clipping the ratio.

    J = Σ_tokens  w · r A · keep
    signed (DPPO):     keep = π − μ ≤ ε_high where A > 0,    π − μ ≥ −ε_low where A ≤ 0
    not signed (IPO):  keep = −ε_low ≤ π − μ ≤ ε_high

π and μ are here the probabilities of the sampled token. |π − μ| is the total variation between the policies
as binary distributions over that token and all others. The ratio of an unlikely token instead may be large
although its probability hardly moves. The signed form keeps tokens whose update would move them back.
r is at most e^20.
Source: arXiv 2602.04879 (binary total variation). The form without a sign is prime-rl's since August 2026.
"""

from dataclasses import dataclass

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, check_flag, count, log_ratio, ratio


@dataclass(frozen=True)
class Dppo:
    whole_rollouts = False

    epsilon_low: float  # of a probability
    epsilon_high: float
    signed: bool

    def __post_init__(self):
        check_flag("signed", self.signed)
        if not (0 < self.epsilon_low < 1 and 0 < self.epsilon_high < 1):
            bounds = f"{self.epsilon_low} and {self.epsilon_high}"
            raise ValueError(f"bounds of a probability need 0 < epsilon < 1, not {bounds}")

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        moved = (scores.logprobs.detach().exp() - batch.behaviour_logprobs.exp()).where(batch.loss_mask, 0.0)
        rises = batch.advantages > 0
        too_high = moved > self.epsilon_high
        too_low = moved < -self.epsilon_low
        dropped = torch.where(rises, too_high, too_low) if self.signed else too_high | too_low
        r = ratio(log_ratio(scores, batch).masked_fill(dropped, 0.0))
        objective = (r * batch.advantages).masked_fill(dropped, 0.0)
        return -(objective * batch.loss_weights).sum(), {"clip_fraction": count(dropped, batch)}
