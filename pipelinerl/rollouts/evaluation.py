"""Held-out success: attempts at each held-out problem, at temperature 1, and the mean success of each set.

A problem's domain names its set (`aime_2024`). The success of a set is avg@k, with k attempts per problem.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

import msgspec

from contracts.records import Evaluated, Rollout, SetResult
from pipelinerl.config import EvalConfig
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec


@dataclass(frozen=True)
class HeldOut:
    """A held-out problem, and the number of attempts at it."""

    index: int
    problem: Problem
    of_set: str
    attempts: int

    def rollout_specs(self, version: int) -> list[RolloutSpec]:
        return [
            RolloutSpec(self.index, f"eval-{version}-{self.index}-{i}", f"eval {self.index} {i}")
            for i in range(self.attempts)
        ]


def held_out(domain: Domain, config: EvalConfig) -> list[HeldOut]:
    """Returns the problems of an evaluation. Raises ValueError if `attempts_of` names an unknown set."""
    indices = range(min(config.problems, domain.heldout_size))
    problems = [domain.heldout_problem(index) for index in indices]
    names = [problem.domain or domain.name for problem in problems]
    if unknown := sorted(config.attempts_of.keys() - names):
        raise ValueError(
            f"attempts_of names {', '.join(unknown)}; the {len(problems)} held-out problems of an "
            f"evaluation are of {', '.join(dict.fromkeys(names))}"
        )
    attempts = [config.attempts_of.get(name, config.attempts) for name in names]
    return [HeldOut(*each) for each in zip(indices, problems, names, attempts, strict=True)]


class Place:
    """The place of one attempt among the concurrent ones. It is released once, and not taken again.

    An attempt releases it when it waits for its judgement, and then needs few further requests.
    """

    def __init__(self, limit: asyncio.Semaphore):
        self._limit = limit
        self._held = True

    @contextmanager
    def leave(self) -> Iterator[None]:
        self.free()
        yield

    def free(self) -> None:
        if self._held:
            self._limit.release()
        self._held = False


async def attempt_all(
    attempt: RolloutRunner,
    problems: Sequence[HeldOut],
    concurrency: int,
    version: int,
    keep: Callable[[Rollout], Awaitable[object]],
) -> None:
    """Makes all attempts. `keep` is called with each rollout when it ends."""
    limit = asyncio.Semaphore(concurrency)

    async def one(problem: Problem, spec: RolloutSpec) -> None:
        await limit.acquire()
        place = Place(limit)
        try:
            rollout = await replace(attempt, leave_place=place.leave)(problem, spec)
            await keep(rollout)
        finally:
            place.free()

    await asyncio.gather(
        *(one(held.problem, spec) for held in problems for spec in held.rollout_specs(version))
    )


def result_of(
    problems: Sequence[HeldOut], rollouts: Iterable[Rollout], version: int, pinned: bool = False
) -> Evaluated:
    """Returns the result. An attempt that failed, or that left no rollout, counts as unsolved."""
    ended: defaultdict[int, list[Rollout]] = defaultdict(list)  # by index of the problem
    for rollout in rollouts:
        if not rollout.failed:
            ended[rollout.group_id].append(rollout)
    versions = {v for of_problem in ended.values() for rollout in of_problem for v in rollout.versions}
    success = {p.index: sum(r.success for r in ended[p.index]) / p.attempts for p in problems}
    failed = {p.index: p.attempts - len(ended[p.index]) for p in problems}
    sets: defaultdict[str, list[HeldOut]] = defaultdict(list)
    for problem in problems:
        sets[problem.of_set].append(problem)
    return Evaluated(
        version=version,
        problems=len(problems),
        success=fmean(success.values()),
        first_version=min(versions, default=version),
        last_version=max(versions, default=version),
        failed=sum(failed.values()),
        pinned=pinned,
        sets=[
            SetResult(
                name=name,
                problems=len(of_set),
                attempts=of_set[0].attempts,
                success=fmean(success[p.index] for p in of_set),
                failed=sum(failed[p.index] for p in of_set),
            )
            for name, of_set in sets.items()
        ],
    )


def as_sampled(result: Evaluated) -> Evaluated:
    """Returns the result as that of the oldest version that sampled any of it, if its own was skipped."""
    if result.first_version <= result.version:
        return result
    return msgspec.structs.replace(result, version=result.first_version, due=result.version)
