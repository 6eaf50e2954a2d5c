"""Draws problems from easy to hard: uniformly over the easiest share of them, which grows."""

import random
from functools import cached_property

from pipelinerl.domains.base import Domain
from pipelinerl.samplers.base import Sampler


class Curriculum(Sampler):
    """A sampler of the easiest share of the problems, by the domain's labels.

    After d draws the share is f(d) = min(1, start_share + (1 − start_share) d / ramp_draws). Source: linear
    pacing of competence-based curricula, arXiv 1903.09848; Kimi k1.5, arXiv 2501.12599, §2.3.4.

    The seed decides the order of equally difficult problems. A draw depends only on the seed and the number
    of draws before it.
    """

    def __init__(self, domain: Domain, seed: int, start_share: float, ramp_draws: int):
        super().__init__(domain, seed)
        if not 0 < start_share <= 1:
            raise ValueError(f"start_share is {start_share}; it is above 0 and at most 1")
        if not ramp_draws >= 1:
            raise ValueError(f"ramp_draws is {ramp_draws}; it is at least 1")
        domain.difficulty(0)  # raises ValueError if the domain has no labels
        self._start_share = start_share
        self._ramp_draws = ramp_draws
        self._draws = 0

    @cached_property
    def _easiest_first(self) -> list[int]:
        """The problems by difficulty. The first access reads the label of every problem."""
        order = list(range(self._domain.train_size))
        random.Random(f"{self._seed}-ties").shuffle(order)
        return sorted(order, key=self._domain.difficulty)

    def next(self, version: int) -> int:
        share = self._start_share + (1 - self._start_share) * self._draws / self._ramp_draws
        within = max(1, round(min(1, share) * self._domain.train_size))
        drawn = random.Random(f"{self._seed}-{self._draws}").randrange(within)
        self._draws += 1
        return self._easiest_first[drawn]

    def state_dict(self) -> dict[str, int]:
        return {"draws": self._draws}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._draws = state["draws"]
