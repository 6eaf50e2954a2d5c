"""Excludes solved problems from the draws of another sampler."""

from collections.abc import Callable
from typing import Any

from pipelinerl.domains.base import Domain
from pipelinerl.samplers.base import Sampler

MOST_DRAWS = 1000  # draws of the inner sampler for one problem


class Retiring(Sampler):
    """A sampler that repeats the draw of an inner sampler while the problem is retired.

    A problem is retired permanently once a group at it reaches `success`. After 1000 retired problems in a
    row the last one is returned, so that a run with only solved problems continues. The inner sampler counts
    all draws, so a curriculum advances by those of retired problems too.
    Source: ScaleRL, arXiv 2510.13786, no positive resampling, with 0.9.

    sampler: creates the inner sampler from `domain` and `seed`.
    """

    def __init__(self, domain: Domain, seed: int, sampler: Callable[..., Sampler], success: float):
        super().__init__(domain, seed)
        if not 0 < success <= 1:
            raise ValueError(f"success is {success}; it is above 0 and at most 1")
        self._inside = sampler(domain=domain, seed=seed)
        self._success = success
        self._retired: set[int] = set()

    def next(self, version: int) -> int:
        problem = self._inside.next(version)
        for _ in range(MOST_DRAWS):
            if problem not in self._retired or len(self._retired) == self._domain.train_size:
                break
            problem = self._inside.next(version)
        return problem

    def observe(self, problem: int, success: float) -> None:
        self._inside.observe(problem, success)
        if success >= self._success:
            self._retired.add(problem)

    def state_dict(self) -> dict[str, Any]:
        return {"inside": self._inside.state_dict(), "retired": sorted(self._retired)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inside.load_state_dict(state["inside"])
        self._retired = set(state["retired"])
