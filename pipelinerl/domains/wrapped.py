"""The base class of domains that change another one."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem


class Wrapped(Domain):
    """Base class of a domain that wraps another one, to which every method delegates."""

    def __init__(self, domain: Domain):
        self._domain = domain
        self.name = domain.name
        self.needs = domain.needs
        self.programs = domain.programs
        self.informs_reference = domain.informs_reference
        self.demonstrated = domain.demonstrated

    @property
    def fetches(self) -> bool:
        return self._domain.fetches

    @property
    def makes(self) -> bool:
        return self._domain.makes

    @property
    def train_size(self) -> int:
        return self._domain.train_size

    @property
    def heldout_size(self) -> int:
        return self._domain.heldout_size

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        return self._domain.verifiers

    @property
    def parts(self) -> dict[str, range]:
        return self._domain.parts

    def difficulty(self, index: int) -> float:
        return self._domain.difficulty(index)

    def longest_problems(self, count: int) -> list[int]:
        return self._domain.longest_problems(count)

    def longest_heldout(self, count: int) -> list[int]:
        return self._domain.longest_heldout(count)

    def digest(self) -> str:
        return self._domain.digest()

    def plan_notes(self) -> Iterator[str]:
        return self._domain.plan_notes()

    def train_problem(self, index: int) -> Problem:
        return self._domain.train_problem(index)

    def heldout_problem(self, index: int) -> Problem:
        return self._domain.heldout_problem(index)

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        return await self._domain.rollout(client, problem)

    async def open(self) -> None:
        await self._domain.open()

    async def close(self) -> None:
        await self._domain.close()
