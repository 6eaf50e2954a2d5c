"""Leaves out problems that are solved, around any other sampler."""

from collections.abc import Callable
from typing import Any

from pipelinerl.domains.base import Domain
from pipelinerl.samplers.base import Sampler

MOST_DRAWS = 1000  # of the sampler inside for one problem


class Retiring(Sampler):
    """A sampler that draws by another one, and again while the problem is retired.

    A problem is retired for good once a group at it has at least this success: ScaleRL's no positive
    resampling (arXiv 2510.13786, with 0.9). After 1000 retired problems in a row the last of them is taken,
    so that a run goes on whose problems are all solved. For the sampler inside, every draw counts, also those
    of retired problems: a curriculum moves on with them.

    sampler: makes the sampler inside, given `domain` and `seed`.
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
