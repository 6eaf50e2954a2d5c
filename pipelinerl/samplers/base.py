"""What a sampler is: pure state that decides which training problem comes next.

Built with the domain and the run's seed. The actor saves its state with every checkpoint. A resumed run
loads the last state that was saved, and continues from it.
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
        """Index of the next training problem. `version`: of the weights that are live."""

    def observe(self, problem: int, success: float) -> None:  # noqa: B027
        """A group at `problem` has ended: the share of its members that solved it, from 0 to 1."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the sampler's state as MessagePack can carry it, with strings as keys."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
