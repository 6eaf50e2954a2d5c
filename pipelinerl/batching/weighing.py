"""Weighs the rollouts of a step: loss weights, and advantages over the whole step. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import msgspec
import numpy as np

from contracts.records import TrainingSequence
from pipelinerl.batching.sequences import with_advantages
from pipelinerl.batching.staleness import StalePolicy
from pipelinerl.normalisations import GroupTokens, Normalisation


class BufferedRollout(NamedTuple):
    """A rollout in the loss of the step being formed."""

    sequences: list[TrainingSequence]
    advantages: np.ndarray  # [turns]
    lengths: list[int]  # tokens of each turn, without its prompt
    chains: list[list[int]]  # turns of each sequence


class BufferedGroup(NamedTuple):
    """A group of the step being formed, before it is packed."""

    draw: int
    size: int  # including failed members
    rollouts: list[BufferedRollout]


class Weighed(NamedTuple):
    """A rollout with its loss weights. masked: the number of stale tokens removed from the loss."""

    sequences: list[TrainingSequence]
    masked: int


@dataclass(frozen=True)
class Weighing:
    normalisation: Normalisation
    stale: StalePolicy
    batch_size: int
    over_step: Callable[[np.ndarray], np.ndarray] | None  # advantages [N] of a step's turns -> final ones

    def weighed(self, groups: Sequence[BufferedGroup], step: int) -> Iterator[Weighed]:
        """Yields the weighed rollouts of some groups of a step, or of all if the step is buffered."""
        sampled = self._sequences(groups)
        fresh = [[self.stale.mask(sequences, step) for sequences in of_group] for of_group in sampled]
        tokens = [
            GroupTokens(group.size, np.array([_in_loss(sequences) for sequences in rollouts]))
            for group, rollouts in zip(groups, fresh, strict=True)
        ]
        weights = self.normalisation(tokens, self.batch_size)
        for of_group, fresh_of_group, weights_of_group in zip(sampled, fresh, weights, strict=True):
            for before, sequences, weight in zip(of_group, fresh_of_group, weights_of_group, strict=True):
                masked = 0 if sequences is before else _in_loss(before) - _in_loss(sequences)
                yield Weighed([_with(sequence, float(weight)) for sequence in sequences], masked)

    def _sequences(self, groups: Sequence[BufferedGroup]) -> list[list[list[TrainingSequence]]]:
        """Returns the sequences of each rollout of each group, with their final advantages."""
        if self.over_step is None:
            return [[rollout.sequences for rollout in group.rollouts] for group in groups]
        of_rollouts = [rollout.advantages for group in groups for rollout in group.rollouts]
        final = self.over_step(np.concatenate(of_rollouts))
        ends = [*accumulate(map(len, of_rollouts))]
        if final.shape != (ends[-1],):
            raise ValueError(f"over_step returned {final.shape} advantages for {ends[-1]} turns")
        split = iter(np.split(final, ends[:-1]))
        return [
            [with_advantages(r.sequences, next(split), r.lengths, r.chains) for r in group.rollouts]
            for group in groups
        ]


def _with(sequence: TrainingSequence, weight: float) -> TrainingSequence:
    return msgspec.structs.replace(sequence, loss_weight=weight)


def _in_loss(sequences: list[TrainingSequence]) -> int:
    return sum(sequence.tokens_in_loss for sequence in sequences)
