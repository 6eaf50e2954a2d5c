"""Weights of later versions that differ little from those of earlier ones, as a delta is made for."""

import torch

from contracts.conformance.inference.reference import Weights
from extensions.stored_weights.conformance.store import FILES, split

EVERY = 20  # elements of a tensor, of which one changes
NOISE = 0.5  # in root mean squares of the tensor


def in_dtype(weights: Weights, dtype: torch.dtype) -> Weights:
    """Returns the weights in `dtype`."""
    return {name: tensor.to(dtype) for name, tensor in weights.items()}


def nudged(weights: Weights, seed: int) -> Weights:
    """Returns weights of which one tensor is as it was, one all new, and a few elements of others new."""
    generator = torch.Generator().manual_seed(seed)
    names = sorted(weights)
    changed = dict(weights)
    for i, name in enumerate(names):
        step = EVERY if i else 1
        if i == seed % len(names) and i:
            continue
        changed[name] = weights[name].clone()
        flat = changed[name].view(-1)
        noise = torch.randn(flat[::step].shape, generator=generator)
        size = flat.float().square().mean().sqrt()  # larger changes would make rounding errors large too
        flat[::step] = (flat[::step].float() + NOISE * size * noise).to(flat.dtype)
    return changed


def partly(old: Weights, new: Weights) -> Weights:
    """Returns `old` with the tensors of the first file from `new`: the other files stay as they are."""
    return {**old, **{name: new[name] for name in split(old, FILES)[0]}}
