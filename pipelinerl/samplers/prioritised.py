"""Draws problems of low success more often."""

import random
from typing import Any

import numpy as np

from pipelinerl.domains.base import Domain
from pipelinerl.samplers.base import Sampler


class Prioritised(Sampler):
    """A sampler with p_i ∝ max(1 − s_i, floor), where s_i is the tracked success of problem i, 0 at first.

    Source: Kimi k1.5, arXiv 2501.12599, §2.3.4.

    rate: weight of one group in s_i; at 1, only the latest group counts.
    floor: the weight of a solved problem, which is still drawn sometimes.
    """

    def __init__(self, domain: Domain, seed: int, rate: float, floor: float):
        super().__init__(domain, seed)
        for name, value in (("rate", rate), ("floor", floor)):
            if not 0 < value <= 1:
                raise ValueError(f"{name} is {value}; it is above 0 and at most 1")
        self._rate = rate
        self._floor = floor
        self._draws = 0
        self._success: dict[int, float] = {}  # problem -> tracked success
        self._weights = np.ones(domain.train_size)

    def next(self, version: int) -> int:
        reached = np.cumsum(self._weights)
        drawn = random.Random(f"{self._seed}-{self._draws}").random() * reached[-1]
        self._draws += 1
        return min(int(np.searchsorted(reached, drawn, side="right")), len(reached) - 1)

    def observe(self, problem: int, success: float) -> None:
        before = self._success.get(problem, success)
        self._track(problem, before + self._rate * (success - before))

    def _track(self, problem: int, success: float) -> None:
        self._success[problem] = success
        self._weights[problem] = max(1 - success, self._floor)

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws, "success": {str(i): s for i, s in self._success.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draws = state["draws"]
        self._success = {}
        self._weights[:] = 1
        for problem, success in state["success"].items():
            self._track(int(problem), success)
