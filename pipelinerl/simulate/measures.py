"""What is measured of a simulated run. Pure."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from contracts.records import MicroBatchRow, Rollout
from pipelinerl.simulate.trainer import Doing


@dataclass
class Measures:
    """Counts of what was sampled, trained and dropped, and what the time went to."""

    seconds: float = 0.0
    occupied: float = 0.0  # mean share of the servers' places that were taken
    trainer: dict[Doing, float] = field(default_factory=dict)  # shares of the time
    sampled_lengths: list[int] = field(default_factory=list)
    trained_lengths: list[int] = field(default_factory=list)
    drops: Counter[str] = field(default_factory=Counter)  # groups by reason
    lags: Counter[int] = field(default_factory=Counter)  # trained tokens by lag

    def sampled(self, rollout: Rollout) -> None:
        """Counts an answer."""
        self.sampled_lengths.append(rollout.sampled_tokens)

    def dropped(self, reason: str) -> None:
        """Counts a group that is not trained on."""
        self.drops[str(reason)] += 1

    def trained(self, row: MicroBatchRow) -> None:
        """Counts a row that has been trained."""
        for sequences in row.micro_batches:
            for sequence in sequences:
                self.trained_lengths.append(int((sequence.versions >= 0).sum()))
                lags = row.step - sequence.versions[sequence.loss_mask]
                for lag, tokens in zip(*np.unique(lags, return_counts=True), strict=True):
                    self.lags[int(lag)] += int(tokens)

    def end(self, seconds: float, occupied: float, trainer: dict[Doing, float]) -> None:
        """Takes what is known at the end."""
        self.seconds = seconds
        self.occupied = occupied
        self.trainer = {doing: spent / seconds for doing, spent in trainer.items()}

    @property
    def trained_tokens_per_s(self) -> float:
        return sum(self.trained_lengths) / self.seconds

    @property
    def lag_mean(self) -> float:
        return sum(lag * tokens for lag, tokens in self.lags.items()) / max(self.lags.total(), 1)
