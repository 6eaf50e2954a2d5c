"""Draws problems from an easy, a normal and a hard pool, by the success of the latest group at each."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelinerl.domains.base import Domain
from pipelinerl.samplers.base import Sampler

POOLS = ("easy", "normal", "hard")


class DifficultyPools(Sampler):
    """A sampler that draws a pool by weight, among pools that are not empty, then a problem uniformly.

    A problem is hard if its latest group's success was at most `hard_up_to`, normal up to `normal_up_to`, and
    easy above. A new problem is normal. Source: INTELLECT-3, arXiv 2512.16144, for the pools only.

    weights: the weight of each pool, independent of its size.
    """

    def __init__(
        self, domain: Domain, seed: int, hard_up_to: float, normal_up_to: float, weights: Mapping[str, float]
    ):
        super().__init__(domain, seed)
        if not 0 <= hard_up_to < normal_up_to <= 1:
            raise ValueError(
                f"hard_up_to={hard_up_to} normal_up_to={normal_up_to}: 0 <= hard_up_to < normal_up_to <= 1"
            )
        if set(weights) != {*POOLS} or not all(weight > 0 for weight in weights.values()):
            raise ValueError(
                f"weights are {dict(weights)}; easy, normal and hard each have one above 0, "
                "since any of them may come to hold all problems"
            )
        self._hard_up_to = hard_up_to
        self._normal_up_to = normal_up_to
        self._weights = weights
        self._draws = 0
        self._success: dict[int, float] = {}  # problem -> success of its latest group
        self._pools = np.full(domain.train_size, POOLS.index("normal"), dtype=np.int8)

    def next(self, version: int) -> int:
        chance = random.Random(f"{self._seed}-{self._draws}")
        self._draws += 1
        sizes = np.bincount(self._pools, minlength=len(POOLS))
        weights = [self._weights[pool] if size else 0 for pool, size in zip(POOLS, sizes, strict=True)]
        (pool,) = chance.choices(range(len(POOLS)), weights)
        return int(np.flatnonzero(self._pools == pool)[chance.randrange(sizes[pool])])

    def observe(self, problem: int, success: float) -> None:
        self._success[problem] = success
        self._pools[problem] = POOLS.index(self._pool(success))

    def _pool(self, success: float) -> str:
        if success <= self._hard_up_to:
            return "hard"
        return "normal" if success <= self._normal_up_to else "easy"

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws, "success": {str(i): s for i, s in self._success.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draws = state["draws"]
        self._success = {}
        self._pools[:] = POOLS.index("normal")
        for problem, success in state["success"].items():
            self.observe(int(problem), success)
