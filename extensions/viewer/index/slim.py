"""Decodes the fields of records that the index needs, without most per-token arrays.

The structs are subsets of those in `contracts.records`, with the same field names.
"""

from typing import Any

import msgspec
import numpy as np

from contracts.records import VersionSpan, decode_array


class SlimCompletion(msgspec.Struct, frozen=True):
    spans: list[VersionSpan]
    server: str = ""
    began: float = 0.0
    ended: float = 0.0
    finish_reason: str = ""

    @property
    def tokens(self) -> int:
        """The number of sampled tokens, because the spans cover each token exactly once."""
        return self.spans[-1].end if self.spans else 0


class SlimRollout(msgspec.Struct, frozen=True, tag="Rollout", tag_field="record"):
    rollout_id: str
    group_id: int
    problem_id: str
    domain: str
    completions: list[SlimCompletion] = []
    reward: float = 0.0
    success: float | None = None
    metrics: dict[str, float] = {}
    started_at: float = 0.0
    finished_at: float = 0.0
    status: str = "ok"

    @property
    def solved(self) -> float | None:
        """The success, which older runs recorded as a metric."""
        return self.metrics.get("success") if self.success is None else self.success

    @property
    def version_range(self) -> tuple[int, int] | tuple[None, None]:
        """The oldest and the newest weight version that sampled a token."""
        versions = [s.version for c in self.completions for s in c.spans if s.end > s.start]
        return (min(versions), max(versions)) if versions else (None, None)


class SlimSequence(msgspec.Struct, frozen=True):
    rollout_id: str
    loss_mask: Any  # [T] bool
    versions: Any  # [T] int32
    advantages: Any  # [T] float32


class SlimRow(msgspec.Struct, frozen=True, tag="MicroBatchRow", tag_field="record"):
    step: int
    index: int
    micro_batches: list[list[SlimSequence]]


class Training(msgspec.Struct, frozen=True):
    """The training of one rollout in a row of a step."""

    rollout_id: str
    step: int
    advantage: float  # mean over the sampled tokens
    lag: int | None  # largest lag of a token in the loss; None if the loss has no token of it
    sampled: int  # number of sampled tokens
    row: int  # index of the row in the step


NO_LAG = -(2**31)  # marks a sequence without tokens in the loss
rollout_decoder = msgspec.msgpack.Decoder(SlimRollout)
_row_decoder = msgspec.msgpack.Decoder(SlimRow, ext_hook=decode_array)


def trainings_of(payload: memoryview) -> list[Training]:
    """Returns a Training for each rollout of an encoded MicroBatchRow."""
    row = _row_decoder.decode(payload)
    sequences = [s for rank in row.micro_batches for s in rank if len(s.versions)]
    if not sequences:
        return []
    starts = np.cumsum([0, *(len(s.versions) for s in sequences[:-1])])
    versions = np.concatenate([s.versions for s in sequences])
    loss_mask = np.concatenate([s.loss_mask for s in sequences])
    advantages = np.concatenate([s.advantages for s in sequences])
    is_sampled = versions >= 0
    lags = np.maximum.reduceat(np.where(loss_mask, row.step - versions, NO_LAG), starts)
    sums = np.add.reduceat(np.where(is_sampled, advantages, 0).astype(float), starts)
    counts = np.add.reduceat(is_sampled.astype(int), starts)
    of_rollouts: dict[str, tuple[int, float, int]] = {}
    for sequence, *found in zip(sequences, lags.tolist(), sums.tolist(), counts.tolist(), strict=True):
        lag, total, count = of_rollouts.get(sequence.rollout_id, (NO_LAG, 0.0, 0))
        of_rollouts[sequence.rollout_id] = max(lag, found[0]), total + found[1], count + found[2]
    return [
        Training(
            rollout_id, row.step, total / max(count, 1), None if lag == NO_LAG else lag, count, row.index
        )
        for rollout_id, (lag, total, count) in of_rollouts.items()
    ]
