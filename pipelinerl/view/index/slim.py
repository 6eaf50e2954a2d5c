"""Decodes what the index holds of a record, without its arrays of tokens.

The structs have the names and the fields of those in `contracts.records`; other fields are skipped.
"""

from typing import Any

import msgspec

from contracts.records import VersionSpan, decode_array


class SlimCompletion(msgspec.Struct, frozen=True):
    spans: list[VersionSpan]
    server: str = ""
    began: float = 0.0
    ended: float = 0.0
    finish_reason: str = ""

    @property
    def tokens(self) -> int:
        """The number of tokens, which the spans cover exactly once."""
        return self.spans[-1].end if self.spans else 0


class SlimRollout(msgspec.Struct, frozen=True, tag="Rollout", tag_field="record"):
    rollout_id: str
    group_id: int
    problem_id: str
    domain: str
    completions: list[SlimCompletion] = []
    reward: float = 0.0
    metrics: dict[str, float] = {}
    started_at: float = 0.0
    finished_at: float = 0.0
    status: str = "ok"

    @property
    def version_range(self) -> tuple[int, int] | tuple[None, None]:
        """The oldest and the newest version that sampled any of its tokens."""
        versions = [s.version for c in self.completions for s in c.spans if s.end > s.start]
        return (min(versions), max(versions)) if versions else (None, None)


class SlimSequence(msgspec.Struct, frozen=True):
    rollout_id: str
    loss_mask: Any  # [T] bool
    versions: Any  # [T] int32
    advantages: Any  # [T] float32


class SlimRow(msgspec.Struct, frozen=True, tag="MicroBatchRow", tag_field="record"):
    step: int
    micro_batches: list[list[SlimSequence]]


class Training(msgspec.Struct, frozen=True):
    """What became of a rollout in a step. advantage: the mean over its sampled tokens."""

    rollout_id: str
    step: int
    advantage: float
    lag: int | None  # the largest of a token in the loss; None without any


rollout_decoder = msgspec.msgpack.Decoder(SlimRollout)
_row_decoder = msgspec.msgpack.Decoder(SlimRow, ext_hook=decode_array)


def trainings_of(payload: memoryview) -> list[Training]:
    """Returns one for each rollout of an encoded row."""
    row = _row_decoder.decode(payload)
    of_rollouts: dict[str, list[SlimSequence]] = {}
    for rank in row.micro_batches:
        for sequence in rank:
            of_rollouts.setdefault(sequence.rollout_id, []).append(sequence)
    return [_training(sequences, row.step) for sequences in of_rollouts.values()]


def _training(sequences: list[SlimSequence], step: int) -> Training:
    in_loss = [sequence.versions[sequence.loss_mask] for sequence in sequences]
    advantages = [sequence.advantages[sequence.versions >= 0] for sequence in sequences]
    sampled = sum(map(len, advantages))
    oldest = min((int(versions.min()) for versions in in_loss if len(versions)), default=None)
    return Training(
        rollout_id=sequences[0].rollout_id,
        step=step,
        advantage=sum(float(values.sum()) for values in advantages) / max(sampled, 1),
        lag=None if oldest is None else step - oldest,
    )
