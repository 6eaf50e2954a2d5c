"""Tokenised training examples, with a loss on some of the tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORED = -100

Batch = tuple[Tensor, Tensor]  # token ids [B, T] int64; labels [B, T], IGNORED for tokens without a loss


class Example(NamedTuple):
    token_ids: list[int]
    labels: list[int]  # the token id, or IGNORED


def example(given: list[int], target: list[int]) -> Example:
    """Returns an example with a loss only on `target`."""
    return Example(given + target, [IGNORED] * len(given) + target)


def batch_of(examples: Sequence[Example], pad: int) -> Batch:
    ids = pad_sequence([torch.tensor(row.token_ids) for row in examples], True, pad)
    return ids, pad_sequence([torch.tensor(row.labels) for row in examples], True, IGNORED)
