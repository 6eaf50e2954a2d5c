"""Held-out success: one sample per problem, at temperature 1, of the weights that are live."""

import asyncio
from collections.abc import Callable

from contracts.records import Evaluated, Rollout
from pipelinerl.attempts import AttemptRunner, Member


async def evaluate(
    attempt: AttemptRunner, problems: int, concurrency: int, version: int, keep: Callable[[Rollout], object]
) -> Evaluated:
    """Attempt the first `problems` held-out problems; `keep` is given each rollout. A failed one
    counts as unsolved."""
    domain = attempt.domain
    limit = asyncio.Semaphore(concurrency)

    async def one(index: int) -> Rollout:
        async with limit:
            problem = domain.heldout_problem(index)
            rollout = await attempt(problem, Member(index, f"eval-{version}-{index}", f"eval {index}"))
            keep(rollout)
            return rollout

    rollouts = await asyncio.gather(*(one(index) for index in range(problems)))
    versions = {v for rollout in rollouts for v in rollout.versions} or {version}
    return Evaluated(
        version=version,
        problems=problems,
        success=sum(r.metrics.get("success", 0.0) for r in rollouts) / problems,
        first_version=min(versions),
        last_version=max(versions),
    )
