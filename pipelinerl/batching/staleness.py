"""Applies `on_stale` to tokens that are older than `max_lag` when their step is formed. Pure, no I/O.

It treats tokens labelled with a future version in the same way: their server is broken. Admission alone does
not bound lag, because updates can overtake a slow rollout. A token that no server sampled has version -1, and
is never stale.
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
        """Returns whether a group with these sequences must be dropped from `step`."""
        return self.on_stale == "drop" and any(np.count_nonzero(self._stale(s, step)) for s in sequences)

    def mask(self, sequences: list[TrainingSequence], step: int) -> list[TrainingSequence]:
        """Returns the sequences with their stale tokens out of the loss."""
        if self.on_stale != "mask":
            return sequences
        fresh = [sequence.loss_mask & ~self._stale(sequence, step) for sequence in sequences]
        return [msgspec.structs.replace(s, loss_mask=mask) for s, mask in zip(sequences, fresh, strict=True)]

    def _stale(self, sequence: TrainingSequence, step: int) -> np.ndarray:
        """Returns which sampled tokens have a lag in `step` above `max_lag` or below 0: [T] bool."""
        if self.max_lag is None:
            return sequence.loss_mask & (sequence.versions > step)
        lag = (step - sequence.versions).view(np.uint32)  # below 0 it becomes larger than any limit
        return sequence.loss_mask & (lag > self.max_lag) & (sequence.versions >= 0)
