"""Combines several domains into one. `samplers/mixed.py` decides how often each part is sampled."""

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from pipelinerl.domains.base import Answer, Attempt, ChatClient, Domain, Problem, digest_of, opened
from pipelinerl.judging.wire import Judgement


@dataclass(frozen=True, kw_only=True)
class PartProblem(Problem):
    own: Problem  # the part's problem


@dataclass(frozen=True)
class PartClient:
    """The client of a part's rollouts. It adds the part's name to the names of the part's verifiers."""

    client: ChatClient
    names: Mapping[str, str]  # a verifier's name in the part -> its name in the mixture

    async def chat(self, *conversation: Any, **options: Any) -> Answer:
        return await self.client.chat(*conversation, **options)

    async def prompt_of(self, messages: list[dict[str, str]]) -> list[int]:
        return await self.client.prompt_of(messages)

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        return await self.client.judged(self.names.get(verifier, verifier), task, text)


class Mixture(Domain):
    """A domain with the problems of several domains, its parts.

    Training indices cover the parts one after another. Held-out problems alternate between the parts, until
    those of a part run out. Every problem has the name of its part, also in its id, because parts may share
    problems.

    domains: the parts, by name. A curriculum over several parts compares their difficulty labels directly.
    seed: the run's seed; the parts already have their own.
    """

    name = "mixture"

    def __init__(self, domains: Mapping[str, Domain], seed: int = 0):
        if not domains:
            raise ValueError("a mixture needs at least one domain")
        if any(part.demonstrated for part in domains.values()):
            raise ValueError("a mixture cannot have demonstrations: a run samples, or learns from them")
        if any(part.programs for part in domains.values()):
            raise ValueError("agents cannot be a part of a mixture; a mixture can be an agent's problems")
        self._domains = dict(domains)
        self.informs_reference = any(part.informs_reference for part in self._domains.values())
        self.needs = frozenset().union(*(part.needs for part in self._domains.values()))
        self._opened = AsyncExitStack()

    @property
    def fetches(self) -> bool:
        return any(part.fetches for part in self._domains.values())

    @property
    def makes(self) -> bool:
        return all(part.makes for part in self._domains.values() if part.fetches)

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            in_mixture: domain.verifiers[name]
            for part, domain in self._domains.items()
            for name, in_mixture in names_in_mixture(part, domain).items()
        }

    @property
    def train_size(self) -> int:
        return sum(map(len, self.parts.values()))

    @property
    def heldout_size(self) -> int:
        return len(self._heldout)

    @cached_property
    def parts(self) -> dict[str, range]:
        bounds = accumulate((part.train_size for part in self._domains.values()), initial=0)
        return {name: range(*bound) for name, bound in zip(self._domains, pairwise(bounds), strict=True)}

    @cached_property
    def _heldout(self) -> list[tuple[str, int]]:
        return in_turn({name: part.heldout_size for name, part in self._domains.items()})

    def difficulty(self, index: int) -> float:
        name, within = self._place(index)
        return self._domains[name].difficulty(within)

    def longest_problems(self, count: int) -> list[int]:
        return [
            self.parts[name][index]
            for name, part in self._domains.items()
            for index in part.longest_problems(count)
        ]

    def longest_heldout(self, count: int) -> list[int]:
        longest = {(name, i) for name, part in self._domains.items() for i in part.longest_heldout(count)}
        return [index for index, place in enumerate(self._heldout) if place in longest]

    def digest(self) -> str:
        return digest_of(f"{name} {part.digest()}" for name, part in self._domains.items())

    def plan_notes(self) -> Iterator[str]:
        for name, part in self._domains.items():
            yield from (f"{name}/{line}" for line in part.plan_notes())

    def train_problem(self, index: int) -> Problem:
        name, within = self._place(index)
        return _named(name, self._domains[name].train_problem(within))

    def heldout_problem(self, index: int) -> Problem:
        name, within = self._heldout[index]
        return _named(name, self._domains[name].heldout_problem(within))

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        own = replace(problem.own, messages=problem.messages, data=problem.data)
        domain = self._domains[problem.domain]
        return await domain.rollout(PartClient(client, names_in_mixture(problem.domain, domain)), own)

    async def open(self) -> None:
        """Opens every part. If one fails, the parts opened before it are closed."""
        async with AsyncExitStack() as stack:
            for part in self._domains.values():
                await stack.enter_async_context(opened(part))
            self._opened = stack.pop_all()

    async def close(self) -> None:
        await self._opened.aclose()

    def _place(self, index: int) -> tuple[str, int]:
        """Returns the part of a training problem and its index within the part."""
        name = next(name for name, problems in self.parts.items() if index in problems)
        return name, self.parts[name].index(index)


def names_in_mixture(part: str, domain: Domain) -> dict[str, str]:
    """Returns the mixture's names of a part's verifiers. Verifiers without a specification keep theirs."""
    return {name: f"{part}/{name}" if spec else name for name, spec in domain.verifiers.items()}


def _named(part: str, own: Problem) -> PartProblem:
    name = f"{part}/{own.problem_id}"
    same = {field.name: getattr(own, field.name) for field in fields(Problem)}
    return PartProblem(**same | {"problem_id": name, "domain": part}, own=own)


def in_turn(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns (part, index) pairs: the first of each part, the second of each, ..."""
    return [
        (name, index) for index in range(max(sizes.values())) for name, size in sizes.items() if index < size
    ]
