"""The measurements of a simulated run."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from contracts.records import MicroBatchRow, Rollout
from extensions.simulator.trainer import Doing


@dataclass(frozen=True)
class CompleteGroup:
    """A generated group.

    lengths: lengths of its answers, in tokens.
    lag: lag of its oldest token when its last reward came.
    dropped: drop reason, or None if a step trains on it.
    """

    lengths: list[int]
    lag: int
    dropped: str | None


@dataclass
class Measures:
    """Counts of sampled, trained and dropped groups and tokens, and the use of the time."""

    seconds: float = 0.0
    occupied: float = 0.0  # mean share of request slots in use
    trainer: dict[Doing, float] = field(default_factory=dict)  # shares of the time
    groups: list[CompleteGroup] = field(default_factory=list)
    trained_lengths: list[int] = field(default_factory=list)
    lags: Counter[int] = field(default_factory=Counter)  # trained tokens by lag

    def completed(self, group: list[Rollout], live: int, dropped: str | None) -> None:
        """Adds a group that was completed while version `live` was live."""
        oldest = min(rollout.versions[0] for rollout in group)
        lengths = [rollout.sampled_tokens for rollout in group]
        self.groups.append(CompleteGroup(lengths, live - oldest, dropped))

    def trained(self, row: MicroBatchRow) -> None:
        """Adds a trained row."""
        for sequences in row.micro_batches:
            for sequence in sequences:
                self.trained_lengths.append(int((sequence.versions >= 0).sum()))
                lags = row.step - sequence.versions[sequence.loss_mask]
                for lag, tokens in zip(*np.unique(lags, return_counts=True), strict=True):
                    self.lags[int(lag)] += int(tokens)

    def end(self, seconds: float, occupied: float, trainer: dict[Doing, float]) -> None:
        """Records the totals at the end of the run."""
        self.seconds = seconds
        self.occupied = occupied
        self.trainer = {doing: spent / seconds for doing, spent in trainer.items()}

    @property
    def sampled_lengths(self) -> list[int]:
        """The answer lengths of complete groups."""
        return [length for group in self.groups for length in group.lengths]

    @property
    def drops(self) -> Counter[str]:
        """The numbers of dropped groups by reason."""
        return Counter(str(group.dropped) for group in self.groups if group.dropped)

    @property
    def trained_tokens_per_s(self) -> float:
        return sum(self.trained_lengths) / self.seconds

    @property
    def lag_mean(self) -> float:
        return sum(lag * tokens for lag, tokens in self.lags.items()) / max(self.lags.total(), 1)
