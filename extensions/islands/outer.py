"""The outer optimizer, which moves the shared anchor from round to round.

A step is SGD on the mean of the islands' drifts, with torch's Nesterov momentum (DiLoCo, Douillard et al.
2023). Every operation rounds once in float32, so replayed gradients give the same bits on every island. Must
not know the islands or their messages.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from extensions.islands.quantise import QUANTISERS
from extensions.islands.ring import Partition, Span


class ReplayError(ValueError):
    """The kept gradients do not continue from this anchor."""


@dataclass(frozen=True)
class OuterGradient:
    """The sum of the drifts of one round, as coded messages, which are equal on every island."""

    round: int  # round of the anchor that it changes
    before: str  # lineage of that anchor
    updates: Mapping[str, int]  # island -> number of updates in its drift
    weight: float  # sum of the updates in units of `every`; 0 = the anchor does not change
    quantise: str  # name of the code
    partition: Partition
    messages: Sequence[torch.Tensor]  # uint8, one per span of the partition; none if the weight is 0
    replaces: bool = False  # True if the messages are the next anchor

    @cached_property
    def after(self) -> str:
        """The lineage of the next anchor: a SHA-256 of the previous lineage and all inputs of the step."""
        size = [self.partition.elements, self.partition.parts, self.partition.chunk]
        inputs = [self.before, self.round, self.updates, self.weight, self.quantise, size, self.replaces]
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode())
        for message in self.messages:
            digest.update(message.numpy())
        return digest.hexdigest()

    def values(self) -> Iterator[tuple[Span, torch.Tensor]]:
        """Yields the spans with their decoded values, in new memory."""
        quantiser = QUANTISERS[self.quantise]
        if self.messages:
            for (begin, end), message in zip(self.partition.spans(), self.messages, strict=True):
                yield (begin, end), quantiser.decode(message, end - begin)


@dataclass(frozen=True)
class Snapshot:
    """The outer optimizer's state after a round."""

    round: int
    lineage: str
    anchor: torch.Tensor  # [elements] float32
    momentum: torch.Tensor | None  # [elements] float32; None without momentum


class Outer:
    """The anchor of one rank's shards, with its momentum, on the CPU."""

    def __init__(self, anchor: torch.Tensor, lr: float, momentum: float):
        """Starts at round 0. anchor: [elements] float32, which is changed in place."""
        self.anchor = anchor
        self.lineage = hashlib.sha256(anchor.numpy()).hexdigest()
        self.round = 0
        self.lr = lr
        self.beta = momentum
        self.momentum = torch.zeros_like(anchor) if momentum else None

    @property
    def is_mean(self) -> bool:
        """True if the next anchor is the mean of the islands' models."""
        return self.lr == 1 and self.beta == 0

    def step(
        self, gradient: OuterGradient, watch: Callable[[Span, torch.Tensor], object] = lambda *_: None
    ) -> None:
        """Moves the anchor to the next round. Calls `watch` with each span and its sum before."""
        for (begin, end), values in gradient.values():
            watch((begin, end), values)
            if gradient.replaces:
                self.anchor[begin:end] = values
            else:
                self._move(begin, end, values.div_(gradient.weight))
        self.round += 1
        self.lineage = gradient.after

    def _move(self, begin: int, end: int, mean: torch.Tensor) -> None:
        """Moves some elements. `mean` is overwritten."""
        if self.momentum is not None:
            momentum = self.momentum[begin:end].mul_(self.beta).add_(mean)
            mean.add_(momentum * self.beta)
        self.anchor[begin:end].sub_(mean.mul_(self.lr))

    def check(
        self,
        gradients: Sequence[OuterGradient],
        end: int,
        start: Snapshot | None = None,
        last: str | None = None,
    ) -> None:
        """Raises ReplayError unless the gradients lead from here, or from `start`, to round `end`.

        last: the lineage of that round; None = unknown.
        """
        place = start or self
        sizes = {len(place.anchor), *(gradient.partition.elements for gradient in gradients)}
        if sizes != {len(self.anchor)}:
            raise ReplayError(f"rounds of {max(sizes)} elements, not of {len(self.anchor)}")
        if start and start.momentum is not None and len(start.momentum) != len(self.anchor):
            raise ReplayError(f"a momentum of {len(start.momentum)} elements, not of {len(self.anchor)}")
        number = place.round
        lineage = place.lineage
        for gradient in gradients:
            if (gradient.round, gradient.before) != (number, lineage):
                raise ReplayError(f"the gradient of round {gradient.round} does not continue round {number}")
            number += 1
            lineage = gradient.after
        if number != end:
            raise ReplayError(f"the gradients lead to round {number}, not to {end}")
        if last not in (None, lineage):
            raise ReplayError(f"the gradients lead to another anchor of round {number}")

    def replay(self, gradients: Sequence[OuterGradient], end: int, start: Snapshot | None = None) -> None:
        """Repeats the steps to round `end`, from `start` if given. Raises ReplayError before any change."""
        self.check(gradients, end, start)
        if start:
            self.restore(start)
        for gradient in gradients:
            self.step(gradient)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.round, self.lineage, self.anchor, self.momentum)

    def restore(self, state: Snapshot) -> None:
        """Copies a state into this one. A missing momentum is zero."""
        self.anchor.copy_(state.anchor)
        self.round = state.round
        self.lineage = state.lineage
        if self.momentum is not None:
            self.momentum.copy_(state.momentum) if state.momentum is not None else self.momentum.zero_()
