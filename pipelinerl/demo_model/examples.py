"""Training examples as tokens: a row of token ids, of which some have a loss."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

IGNORED = -100

Batch = tuple[Tensor, Tensor]  # token ids [B, T] int64; labels [B, T], IGNORED where there is no loss


class Example(NamedTuple):
    token_ids: list[int]
    labels: list[int]  # the same, or IGNORED


def example(given: list[int], target: list[int]) -> Example:
    """Returns an example whose loss is on `target` alone."""
    return Example(given + target, [IGNORED] * len(given) + target)


def batch_of(examples: Sequence[Example], pad: int) -> Batch:
    length = max(len(row.token_ids) for row in examples)
    ids = torch.full((len(examples), length), pad)
    labels = torch.full_like(ids, IGNORED)
    for row, (token_ids, row_labels) in enumerate(examples):
        ids[row, : len(token_ids)] = torch.tensor(token_ids)
        labels[row, : len(row_labels)] = torch.tensor(row_labels)
    return ids, labels
