"""Creates weights that differ little from those of another version, for deltas."""

import torch

from contracts.conformance.inference.reference import Weights
from extensions.stored_weights.conformance.store import FILES, split

EVERY = 20  # one in so many elements of a tensor changes
NOISE = 0.5  # size of a change, in root mean squares of the tensor


def in_dtype(weights: Weights, dtype: torch.dtype) -> Weights:
    return {name: tensor.to(dtype) for name, tensor in weights.items()}


def nudged(weights: Weights, seed: int) -> Weights:
    """Returns weights with one unchanged tensor, one new tensor, and a few new elements in all others."""
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
        size = flat.float().square().mean().sqrt()  # larger changes would cause larger rounding errors
        flat[::step] = (flat[::step].float() + NOISE * size * noise).to(flat.dtype)
    return changed


def partly(old: Weights, new: Weights) -> Weights:
    """Returns `old` with the tensors of its first file replaced by those of `new`."""
    return {**old, **{name: new[name] for name in split(old, FILES)[0]}}
