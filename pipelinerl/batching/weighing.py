"""What each token of a step counts: its weight in the loss, and its advantage on the step's scale. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from contracts.records import TrainingSequence
from pipelinerl.batching.staleness import StalePolicy
from pipelinerl.normalisations import GroupTokens, Normalisation


class BufferedGroup(NamedTuple):
    """A group of the step being formed, before it is packed."""

    draw: int
    size: int  # failed members included
    rollouts: list[list[TrainingSequence]]  # for each rollout in the loss, its sequences
    advantages: list[np.ndarray]  # of these rollouts, each [turns]


class Weighed(NamedTuple):
    """A rollout with its weights. masked: the tokens that are in the loss no more, because they are stale."""

    sequences: list[TrainingSequence]
    masked: int


@dataclass(frozen=True)
class Weighing:
    normalisation: Normalisation
    stale: StalePolicy
    batch_size: int
    step_scale: Callable[[np.ndarray], float] | None  # advantages [N] of a step -> their factor

    def weighed(self, groups: Sequence[BufferedGroup], step: int) -> Iterator[Weighed]:
        """Yields the rollouts of these groups: of the whole step, where something spans it."""
        fresh = [[self.stale.mask(sequences, step) for sequences in g.rollouts] for g in groups]
        tokens = [
            GroupTokens(group.size, np.array([_in_loss(sequences) for sequences in rollouts]))
            for group, rollouts in zip(groups, fresh, strict=True)
        ]
        weights = self.normalisation(tokens, self.batch_size)
        scale = self._scale(groups)
        for group, of_group, weights_of_group in zip(groups, fresh, weights, strict=True):
            for before, sequences, weight in zip(group.rollouts, of_group, weights_of_group, strict=True):
                masked = 0 if sequences is before else _in_loss(before) - _in_loss(sequences)
                yield Weighed([_with(sequence, float(weight), scale) for sequence in sequences], masked)

    def _scale(self, groups: Sequence[BufferedGroup]) -> np.float32 | None:
        if self.step_scale is None:
            return None
        return np.float32(self.step_scale(np.concatenate([of for g in groups for of in g.advantages])))


def _with(sequence: TrainingSequence, weight: float, scale: np.float32 | None) -> TrainingSequence:
    advantages = sequence.advantages if scale is None else sequence.advantages * scale
    return msgspec.structs.replace(sequence, loss_weight=weight, advantages=advantages)


def _in_loss(sequences: list[TrainingSequence]) -> int:
    """Returns the number of tokens in the loss."""
    return sum(sequence.tokens_in_loss for sequence in sequences)
