"""Samplers: which training problem comes next. Pure state, saved and restored by `state_dict`."""

import random


class ShuffledEpochs:
    """Every problem once per epoch, in an order that depends on the seed and the epoch alone."""

    def __init__(self, size: int, seed: int):
        if size < 1:
            raise ValueError(f"the domain has {size} training problems; it needs at least one")
        self._size, self._seed = size, seed
        self._epoch = self._position = 0
        self._order = self._shuffled()

    def _shuffled(self) -> list[int]:
        order = list(range(self._size))
        random.Random(f"{self._seed}-{self._epoch}").shuffle(order)
        return order

    def next(self) -> int:
        """Index of the next problem."""
        if self._position == self._size:
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._shuffled()
        index = self._order[self._position]
        self._position += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._shuffled()
