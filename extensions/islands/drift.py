"""The drift of this rank's shards from the anchor, which a round merges. Must not know the other islands.

All work is done in chunks, to avoid a second copy of the shards.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from extensions.islands.flat import Flat
from extensions.islands.outer import Outer, OuterGradient
from extensions.islands.ring import CHUNK, Partition, Span

Read = Callable[[int, int], torch.Tensor]  # (begin, end) -> these elements in new CPU memory


@dataclass(frozen=True)
class Sent:
    """The shards of an exchange that failed here, although the others may have merged it."""

    round: int
    updates: int
    shards: torch.Tensor  # [elements] float32


class Drift:
    """The anchor minus the shards, of one rank."""

    def __init__(self, shards: Callable[[], Flat], outer: Outer):
        self.updates = 0  # number of updates in the drift; 0 = do not merge it
        self.sent: Sent | None = None
        self._shards = shards
        self._outer = outer

    def square(self) -> float:
        """Returns the squared norm, which is not finite if an element is not."""
        drift = self.weighted(1)
        return sum(float(drift(*span).to(torch.float64).square().sum()) for span in self._chunks())

    def weighted(self, weight: float) -> Read:
        """Returns a function that reads the drift times a weight."""
        shards = self._shards()

        def read(begin: int, end: int) -> torch.Tensor:
            return (self._outer.anchor[begin:end] - shards.read(begin, end)).mul_(weight)

        return read

    def model(self) -> Read:
        """Returns a function that reads the shards."""
        return self._shards().read

    def remember(self) -> None:
        """Keeps a copy of the shards, in case the others have merged them."""
        shards = self._shards()
        self.sent = Sent(self._outer.round, self.updates, shards.read(0, shards.elements))

    def end_round(self, gradient: OuterGradient) -> list[float]:
        """Moves the anchor by the gradient, and the shards to the anchor.

        Returns the dot product of drift and gradient, and the gradient's squared norm.
        """
        sums = [0.0, 0.0]
        drift = self.weighted(1)

        def watch(span: Span, values: torch.Tensor) -> None:
            values = values.to(torch.float64)
            sums[0] += float(drift(*span).to(torch.float64) @ values)
            sums[1] += float(values.square().sum())

        self._outer.step(gradient, watch)
        self._shards().write(0, self._outer.anchor)
        self.updates = 0
        self.sent = None
        return sums

    def rebase(self, move: Callable[[], object], merged: bool) -> None:
        """Calls `move`, which moves the anchor, and moves the shards equally, so that the drift is unchanged.

        merged: True if the new anchor contains the sent drift, so that only later updates remain.
        """
        shards = self._shards()
        base = self.sent.shards if merged else self._outer.anchor
        for begin, end in self._chunks():
            shards.write(begin, shards.read(begin, end).sub_(base[begin:end]))
        move()
        for begin, end in self._chunks():
            shards.write(begin, shards.read(begin, end).add_(self._outer.anchor[begin:end]))
        if merged:
            self.updates = max(self.updates - self.sent.updates, 0)
        self.sent = None

    def drop(self, move: Callable[[], object]) -> None:
        """Calls `move`, which moves the anchor, and moves the shards to it, so that the drift is 0."""
        move()
        self._shards().write(0, self._outer.anchor)
        self.updates = 0
        self.sent = None

    def _chunks(self) -> list[Span]:
        return Partition(len(self._outer.anchor), 1, CHUNK).chunks(0)
