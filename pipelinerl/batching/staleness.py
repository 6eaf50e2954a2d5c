"""`on_stale`: what becomes of tokens that are older than `max_lag` when their step is formed.

The same becomes of tokens with the label of a version that is still to be made: a server is broken.

Admission alone does not bound lag, since a slow rollout can be overtaken. Pure, no I/O.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from contracts.records import TrainingSequence


@dataclass(frozen=True)
class StalePolicy:
    on_stale: Literal["drop", "mask", "keep"]
    max_lag: int | None

    def drops(self, sequences: list[TrainingSequence], step: int) -> bool:
        """Whether a group with these sequences must be dropped from `step`."""
        return self.on_stale == "drop" and any(np.count_nonzero(self._stale(s, step)) for s in sequences)

    def mask(self, sequences: list[TrainingSequence], step: int) -> list[TrainingSequence]:
        """The sequences with their stale tokens out of the loss."""
        if self.on_stale != "mask":
            return sequences
        fresh = [sequence.loss_mask & ~self._stale(sequence, step) for sequence in sequences]
        return [msgspec.structs.replace(s, loss_mask=mask) for s, mask in zip(sequences, fresh, strict=True)]

    def _stale(self, sequence: TrainingSequence, step: int) -> np.ndarray:
        """[T] bool: sampled tokens whose lag in `step` exceeds `max_lag`, or is below 0."""
        if self.max_lag is None:
            return sequence.loss_mask & (sequence.versions > step)
        lag = (step - sequence.versions).view(np.uint32)  # below 0 it becomes larger than any limit
        return sequence.loss_mask & (lag > self.max_lag)
