"""Overfits a small model to one given text, so that it samples exactly that text."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from contracts.conformance.inference.reference import Reference, Weights

LARGEST = 20_000_000  # parameters of the largest model that can be overfitted in seconds on a CPU
STEPS = 500
MARGIN = 2.0  # nats by which every token must lead, so that rounding does not change the text


def overfit_weights(
    reference: Reference, prompt: Sequence[int], reply: Sequence[int], dtype: torch.dtype
) -> Weights | None:
    """Returns weights in `dtype` under which the model continues `prompt` with `reply`.

    Returns None if the model is too large or does not learn the reply.
    """
    model = reference.model
    if sum(p.numel() for p in model.parameters()) > LARGEST:
        return None
    for name, parameter in model.named_parameters():
        parameter.data = reference.weights(0)[name].clone()
    ids = torch.tensor([[*prompt, *reply]])
    targets = torch.tensor(reply)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        margin = _smallest_margin(logits.detach(), targets)
        if margin > MARGIN:
            return {name: p.detach().to(dtype, copy=True) for name, p in model.named_parameters()}
        F.cross_entropy(logits, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return None


def _smallest_margin(logits: torch.Tensor, targets: torch.Tensor) -> float:
    """Returns the smallest lead, in nats, of a target token over the most likely other token."""
    chosen = logits.gather(1, targets[:, None])
    others = logits.scatter(1, targets[:, None], -torch.inf)
    return float((chosen[:, 0] - others.max(1).values).min())
