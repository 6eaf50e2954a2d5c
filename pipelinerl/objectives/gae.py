"""Generalized advantage estimation (GAE) over the tokens of each rollout, without a discount.

    A_t = Σ_l λ^l δ_{t+l},    δ_t = r_t + V_{t+1} − V_t

t counts the tokens of a rollout that are in the loss. Prompts and masked tokens are skipped. Sequences come
in the order of their first turns, so conversations that alternate in one attempt follow each other. V after
the last token is 0. r_t = R_t − R_{t+1}, where R is the return. So the reward is at the rollout's end, or,
with `credit=turn`, at the ends of its turns. Let e = R − V be the error of a value. Then δ_t = e_t −
e_{t+1}, and

    A_t = e_t − (1 − λ) Σ_{l≥1} λ^{l−1} e_{t+l}

Source: arXiv 1506.02438, eq. 11 to 16, with γ = 1.
"""

import torch

from contracts.trainer import PackedBatch


def later_errors(errors: torch.Tensor, batch: PackedBatch, decay: float) -> torch.Tensor:
    """Returns (1 − λ) Σ_{l≥1} λ^{l−1} e_{t+l} for the errors e [T] and λ = `decay`: [T].

    The result is 0 for tokens that are not in the loss. Takes log2(T) operations on all tokens.
    """
    later = torch.zeros_like(errors)
    if decay == 1:
        return later
    in_loss = batch.loss_mask.nonzero().squeeze(1)
    tokens = in_loss[batch.rollout_ids[in_loss].argsort(stable=True)]  # [N], rollout by rollout
    rollouts = batch.rollout_ids[tokens]
    sums = errors[tokens]  # of the next `span` errors, each times its power of λ
    span = 1
    power = decay
    while span < len(sums) and power > 0:
        sums = sums + power * _from(sums, rollouts, span)
        span *= 2
        power *= power
    later[tokens] = (1 - decay) * _from(sums, rollouts, 1)
    return later


def _from(values: torch.Tensor, rollouts: torch.Tensor, distance: int) -> torch.Tensor:
    """Returns the values [N] of the tokens at a distance, 0 beyond the end of a rollout."""
    moved = torch.zeros_like(values)
    moved[:-distance] = values[distance:].where(rollouts[distance:] == rollouts[:-distance], 0.0)
    return moved
