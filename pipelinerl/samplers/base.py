"""The interface of samplers. A sampler is pure state that chooses the next training problem.

It is built with the domain and the run's seed. The actor saves its state with every checkpoint. A resumed run
loads the last saved state, and continues from it.
"""

import abc
from typing import Any

from pipelinerl.domains.base import Domain


class Sampler(abc.ABC):
    def __init__(self, domain: Domain, seed: int):
        if domain.train_size < 1:
            raise ValueError(f"the domain has {domain.train_size} training problems; it needs at least one")
        self._domain = domain
        self._seed = seed

    @abc.abstractmethod
    def next(self, version: int) -> int:
        """Returns the index of the next training problem. `version` is the live weight version."""

    def observe(self, problem: int, success: float) -> None:  # noqa: B027
        """Takes the result of a group at `problem`: the share of its members that solved it, from 0 to 1."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the sampler's state, with string keys, in types that MessagePack supports."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
