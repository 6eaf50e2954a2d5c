"""Weights with one special property each, to reveal faults related to it. G1 sends them."""

import torch

from contracts.conformance.inference.reference import Reference, Weights

LAST_ROWS = 4  # rows of embedding and head
GROWTH = 2.0  # factor of every other matrix
SHRINKAGE = 0.5


def partly_new(reference: Reference, old: Weights, new: Weights) -> dict[str, Weights]:
    """Returns a map from descriptions to `old` with one kind of tensor taken from `new`."""
    kinds = {
        "only biases and norms changed": [name for name in old if old[name].dim() == 1],
        "only embedding and head changed": reference.vocabulary(),
        "only the matrices between them changed": [
            name for name in old if old[name].dim() > 1 and name not in reference.vocabulary()
        ],
    }
    return {what: {**old, **{name: new[name] for name in names}} for what, names in kinds.items()}


def scaled(reference: Reference, weights: Weights, factor: float) -> Weights:
    """Multiplies every matrix except embedding and head by `factor`."""
    vocabulary = reference.vocabulary()
    return {
        name: tensor * factor if tensor.dim() > 1 and name not in vocabulary else tensor
        for name, tensor in weights.items()
    }


def with_the_last_rows_in_use(reference: Reference, weights: Weights) -> Weights:
    """Exchanges the rows of the most frequent ids with the last rows, so that the highest ids are sampled."""
    logits = reference.distribution(weights, reference.prompt(8), reference.prompt(32, seed=1))
    frequent = logits.exp().mean(0).topk(LAST_ROWS).indices
    last = torch.arange(logits.shape[-1] - LAST_ROWS, logits.shape[-1])
    order = torch.arange(logits.shape[-1])
    for a, b in zip(frequent.tolist(), last.tolist(), strict=True):
        order[[a, b]] = order[[b, a]]
    return {
        name: tensor[order] if name in reference.vocabulary() else tensor for name, tensor in weights.items()
    }
