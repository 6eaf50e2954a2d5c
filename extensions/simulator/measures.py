"""The measurements of a simulated run, and their table. Pure computation."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from contracts.records import MicroBatchRow, Rollout
from extensions.simulator.trainer import Doing
from pipelinerl.config import RunConfig

COLUMNS = (
    "schedule",
    "s a step",
    "trained tokens/s",
    "places taken",
    "trainer waits",
    "lag mean (max)",
    "groups dropped as stale",
    "mean length trained / sampled",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


@dataclass(frozen=True)
class CompleteGroup:
    """A generated group.

    lengths: lengths of its answers, in tokens.
    lag: lag of its oldest token at its last reward.
    dropped: the reason why it was dropped, or None.
    """

    lengths: list[int]
    lag: int
    dropped: str | None


@dataclass
class Measures:
    """Counts of sampled, trained and dropped groups and tokens, and the use of the time."""

    seconds: float = 0.0
    occupied: float = 0.0  # mean share of the request slots in use
    trainer: dict[Doing, float] = field(default_factory=dict)  # shares of the time
    groups: list[CompleteGroup] = field(default_factory=list)
    trained_lengths: list[int] = field(default_factory=list)
    lags: Counter[int] = field(default_factory=Counter)  # trained tokens by lag

    def completed(self, group: list[Rollout], live: int, dropped: str | None) -> None:
        """Counts a group that was completed with the live version `live`."""
        oldest = min(rollout.versions[0] for rollout in group)
        lengths = [rollout.sampled_tokens for rollout in group]
        self.groups.append(CompleteGroup(lengths, live - oldest, dropped))

    def trained(self, row: MicroBatchRow) -> None:
        for sequences in row.micro_batches:
            for sequence in sequences:
                self.trained_lengths.append(int((sequence.versions >= 0).sum()))
                lags = row.step - sequence.versions[sequence.loss_mask]
                for lag, tokens in zip(*np.unique(lags, return_counts=True), strict=True):
                    self.lags[int(lag)] += int(tokens)

    def end(self, seconds: float, occupied: float, trainer: dict[Doing, float]) -> None:
        self.seconds = seconds
        self.occupied = occupied
        self.trainer = {doing: spent / seconds for doing, spent in trainer.items()}

    @property
    def sampled_lengths(self) -> list[int]:
        """The lengths of the answers of complete groups."""
        return [length for group in self.groups for length in group.lengths]

    @property
    def drops(self) -> Counter[str]:
        return Counter(str(group.dropped) for group in self.groups if group.dropped)

    @property
    def trained_tokens_per_s(self) -> float:
        return sum(self.trained_lengths) / self.seconds

    @property
    def lag_mean(self) -> float:
        return sum(lag * tokens for lag, tokens in self.lags.items()) / max(self.lags.total(), 1)


def row_of(config: RunConfig, found: Measures) -> str:
    """Returns the table row of one run."""
    waits = found.trainer[Doing.WAITING] + found.trainer[Doing.QUIESCING]
    cells = (
        config.schedule,
        f"{found.seconds / config.max_steps:.2f}",
        f"{found.trained_tokens_per_s:.0f}",
        f"{found.occupied:.0%}",
        f"{waits:.0%}",
        f"{found.lag_mean:.2f} ({max(found.lags, default=0)})",
        f"{found.drops['stale'] / len(found.groups):.1%}",
        f"{np.mean(found.trained_lengths) / np.mean(found.sampled_lengths):.3f}",
    )
    return f"| {' | '.join(cells)} |"
