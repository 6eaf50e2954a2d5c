"""Draws problems from several domains: first the domain, then one of its problems."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from pipelinerl.domains.base import Domain
from pipelinerl.domains.subset import Selection
from pipelinerl.samplers.base import Sampler


class Mixed(Sampler):
    """A sampler that draws a part of the mixture, then a problem by the part's sampler.

    A part is drawn by p ∝ weight, or with `adapt` by p ∝ weight · max(1 − s, floor). s is an exponential
    average of the part's success, 0 until its first group has ended.

    sampler: creates the sampler of a part from `domain` and `seed`.
    weights: weights by the part's name; 1 by default, 0 to exclude the part.
    rate: weight of one group in s.
    floor: smallest share of a part's weight, for a part whose problems are solved.
    """

    def __init__(
        self,
        domain: Domain,
        seed: int,
        sampler: Callable[..., Sampler],
        weights: Mapping[str, float],
        adapt: bool,
        rate: float,
        floor: float,
    ):
        super().__init__(domain, seed)
        self._parts = domain.parts
        if unknown := sorted(set(weights) - set(self._parts)):
            raise ValueError(
                f"weights name {', '.join(unknown)}; the domain's parts are {', '.join(self._parts)}"
            )
        self._weights = {part: weights.get(part, 1.0) for part in self._parts}
        if not all(weight >= 0 for weight in self._weights.values()) or not any(self._weights.values()):
            raise ValueError(f"weights are {self._weights}; none is below 0, and one at least above")
        for name, value in (("rate", rate), ("floor", floor)):
            if not 0 < value <= 1:
                raise ValueError(f"{name} is {value}; it is above 0 and at most 1")
        self._adapt = adapt
        self._rate = rate
        self._floor = floor
        self._samplers = {
            part: sampler(domain=Selection(domain, problems), seed=_seed_of(part, seed))
            for part, problems in self._parts.items()
        }
        self._success: dict[str, float] = {}
        self._draws = 0

    def next(self, version: int) -> int:
        chance = random.Random(f"{self._seed}-{self._draws}")
        self._draws += 1
        (part,) = chance.choices(list(self._parts), [self._weight(part) for part in self._parts])
        return self._parts[part][self._samplers[part].next(version)]

    def _weight(self, part: str) -> float:
        solved = self._success.get(part, 0.0) if self._adapt else 0.0
        return self._weights[part] * max(1 - solved, self._floor)

    def observe(self, problem: int, success: float) -> None:
        part = next(part for part, problems in self._parts.items() if problem in problems)
        self._samplers[part].observe(self._parts[part].index(problem), success)
        before = self._success.get(part, success)
        self._success[part] = before + self._rate * (success - before)

    def state_dict(self) -> dict[str, Any]:
        samplers = {part: sampler.state_dict() for part, sampler in self._samplers.items()}
        return {"draws": self._draws, "success": dict(self._success), "samplers": samplers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draws = state["draws"]
        self._success = dict(state["success"])
        for part, sampler in self._samplers.items():
            sampler.load_state_dict(state["samplers"][part])


def _seed_of(part: str, seed: int) -> int:
    """Returns a seed for each part, so that parts of the same size have different orders."""
    return random.Random(f"{seed}/{part}").randrange(2**31)
