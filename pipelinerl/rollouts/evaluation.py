"""Measures held-out success: the mean success of the attempts at the problems of each held-out set.

A problem's domain names its set, such as `aime_2024`. The success of a set is avg@k for k attempts per
problem.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import fmean

import msgspec

from contracts.records import Evaluated, Rollout, SetResult
from pipelinerl.config import EvalConfig
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec


@dataclass(frozen=True)
class HeldOut:
    """A held-out problem. of_set: name of its set. attempts: the number of attempts at it."""

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
    attempts_of = {name: attempts for name, attempts in config.attempts_of.items() if attempts is not None}
    if unknown := sorted(attempts_of.keys() - names):
        raise ValueError(
            f"attempts_of names {', '.join(unknown)}; the {len(problems)} held-out problems of an "
            f"evaluation are of {', '.join(dict.fromkeys(names))}"
        )
    attempts = [attempts_of.get(name, config.attempts) for name in names]
    return [HeldOut(*each) for each in zip(indices, problems, names, attempts, strict=True)]


class AttemptSlot:
    """One attempt's share of a limit of concurrent attempts.

    It is released once, when the attempt waits for a judgement. Most attempts then send no further request.
    """

    def __init__(self, limit: asyncio.Semaphore):
        self._limit = limit
        self._acquired = True

    @contextmanager
    def released(self) -> Iterator[None]:
        self.release()
        yield

    def release(self) -> None:
        if self._acquired:
            self._limit.release()
        self._acquired = False


async def attempt_all(
    attempt: RolloutRunner,
    problems: Sequence[HeldOut],
    concurrency: int,
    version: int,
    keep: Callable[[Rollout], Awaitable[object]],
) -> None:
    """Makes all attempts, and calls `keep` with each finished rollout."""
    programs = attempt.domain.programs
    limit = asyncio.Semaphore(min(concurrency, programs) if programs else concurrency)

    async def one(problem: Problem, spec: RolloutSpec) -> None:
        await limit.acquire()
        slot = AttemptSlot(limit)
        try:
            release = nullcontext if programs else slot.released  # programs ask until their end
            rollout = await replace(attempt, release_slot=release)(problem, spec)
            await keep(rollout)
        finally:
            slot.release()

    await asyncio.gather(
        *(one(held.problem, spec) for held in problems for spec in held.rollout_specs(version))
    )


def result_of(
    problems: Sequence[HeldOut], rollouts: Iterable[Rollout], version: int, pinned: bool = False
) -> Evaluated:
    """Returns the result of an evaluation. Failed and missing rollouts count as unsolved."""
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
    """Returns the result, attributed to the oldest version that sampled it if `result.version` did not."""
    if result.first_version <= result.version:
        return result
    return msgspec.structs.replace(result, version=result.first_version, due=result.version)
