"""Weights that differ from others in one respect, so that a fault in that respect shows. G1 sends them."""

import torch

from contracts.conformance.inference.reference import Reference, Weights

LAST_ROWS = 4  # rows of each vocabulary table
GROWTH = 2.0  # factor of every matrix between them
SHRINKAGE = 0.5


def partly_new(reference: Reference, old: Weights, new: Weights) -> dict[str, Weights]:
    """Returns, by description, `old` with one kind of tensor taken from `new`."""
    kinds = {
        "only biases and norms changed": [name for name in old if old[name].dim() == 1],
        "only embedding and head changed": reference.vocabulary(),
        "only the matrices between them changed": [
            name for name in old if old[name].dim() > 1 and name not in reference.vocabulary()
        ],
    }
    return {what: {**old, **{name: new[name] for name in names}} for what, names in kinds.items()}


def scaled(reference: Reference, weights: Weights, factor: float) -> Weights:
    """Returns the weights with every matrix except the vocabulary's multiplied by `factor`."""
    vocabulary = reference.vocabulary()
    return {
        name: tensor * factor if tensor.dim() > 1 and name not in vocabulary else tensor
        for name, tensor in weights.items()
    }


def with_the_last_rows_in_use(reference: Reference, weights: Weights) -> Weights:
    """Returns the weights with the vocabulary's most frequent rows exchanged with its last ones.

    Completions then contain mostly the highest ids.
    """
    logits = reference.distribution(weights, reference.prompt(8), reference.prompt(32, seed=1))
    frequent = logits.exp().mean(0).topk(LAST_ROWS).indices
    last = torch.arange(logits.shape[-1] - LAST_ROWS, logits.shape[-1])
    order = torch.arange(logits.shape[-1])
    for a, b in zip(frequent.tolist(), last.tolist(), strict=True):
        order[[a, b]] = order[[b, a]]
    return {
        name: tensor[order] if name in reference.vocabulary() else tensor for name, tensor in weights.items()
    }
