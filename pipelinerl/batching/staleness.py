"""Applies `on_stale` to tokens that are older than `max_lag` when their step is formed. Pure, no I/O.

Admission alone does not bound lag, because updates can overtake a slow rollout. Tokens with a future version,
from a broken server, are stale too. Tokens that no server sampled have the version -1 and are never stale.
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
        """Returns True if a group with these sequences must be dropped from `step`."""
        return self.on_stale == "drop" and any(np.count_nonzero(self._stale(s, step)) for s in sequences)

    def mask(self, sequences: list[TrainingSequence], step: int) -> list[TrainingSequence]:
        """Returns the sequences without stale tokens in the loss, if `on_stale` is `mask`."""
        if self.on_stale != "mask":
            return sequences
        fresh = [sequence.loss_mask & ~self._stale(sequence, step) for sequence in sequences]
        return [msgspec.structs.replace(s, loss_mask=mask) for s, mask in zip(sequences, fresh, strict=True)]

    def _stale(self, sequence: TrainingSequence, step: int) -> np.ndarray:
        """Returns a mask [T] of the tokens in the loss whose lag in `step` is above `max_lag` or below 0."""
        if self.max_lag is None:
            return sequence.loss_mask & (sequence.versions > step)
        lag = (step - sequence.versions).view(np.uint32)  # a negative lag becomes larger than any limit
        return sequence.loss_mask & (lag > self.max_lag) & (sequence.versions >= 0)
