"""Draws every problem once per epoch, in an order that depends only on the seed and the epoch."""

import random

from pipelinerl.domains.base import Domain
from pipelinerl.samplers.base import Sampler


class ShuffledEpochs(Sampler):
    def __init__(self, domain: Domain, seed: int):
        super().__init__(domain, seed)
        self._epoch = self._position = 0
        self._order = self._shuffled()

    def _shuffled(self) -> list[int]:
        order = list(range(self._domain.train_size))
        random.Random(f"{self._seed}-{self._epoch}").shuffle(order)
        return order

    def next(self, version: int) -> int:
        if self._position == len(self._order):
            self._epoch = self._epoch + 1
            self._position = 0
            self._order = self._shuffled()
        index = self._order[self._position]
        self._position += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "position": self._position, "problems": self._domain.train_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Raises ValueError if the state has another number of problems."""
        before = state.get("problems", self._domain.train_size)
        if before != self._domain.train_size:
            raise ValueError(
                f"the saved order is of {before} training problems, and the domain has "
                f"{self._domain.train_size}; resume with the data that the run began with"
            )
        self._epoch = state["epoch"]
        self._position = state["position"]
        self._order = self._shuffled()
