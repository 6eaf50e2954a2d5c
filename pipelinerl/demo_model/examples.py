"""Lessons as tokens: a row of token ids, of which some are learnt."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NOT_LEARNT = -100

Batch = tuple[Tensor, Tensor]  # token ids [B, T] int64; labels [B, T], NOT_LEARNT where there is no loss


class Lesson(NamedTuple):
    token_ids: list[int]
    labels: list[int]  # the same, or NOT_LEARNT


def lesson(given: list[int], learnt: list[int]) -> Lesson:
    return Lesson(given + learnt, [NOT_LEARNT] * len(given) + learnt)


def batch_of(lessons: Sequence[Lesson], pad: int) -> Batch:
    length = max(len(row.token_ids) for row in lessons)
    ids = torch.full((len(lessons), length), pad)
    labels = torch.full_like(ids, NOT_LEARNT)
    for row, (token_ids, learnt) in enumerate(lessons):
        ids[row, : len(token_ids)] = torch.tensor(token_ids)
        labels[row, : len(learnt)] = torch.tensor(learnt)
    return ids, labels
