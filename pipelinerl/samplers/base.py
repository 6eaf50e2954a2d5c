"""The interface of samplers. The actor saves a sampler's state with every checkpoint."""

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
        """Returns the index of the next training problem. version: the live weight version."""

    def observe(self, problem: int, success: float) -> None:  # noqa: B027
        """Records the result of a group at `problem`: the share of its members that solved it."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the sampler's state, with string keys, in types that MessagePack supports."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
