"""Scores sequences by one version, for engines that read prompts beside generation and its updates."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from contracts.errors import ContractError, ErrorCode
from contracts.inference import ScoreRequest, ScoreResponse

TRIES = 4


class Scores(NamedTuple):
    """The log-probabilities of a sequence's ids but the first, and the version at the last."""

    logprobs: list[float]
    version: int


async def score_by_one_version(
    request: ScoreRequest,
    score: Callable[[list[int], float], Awaitable[Scores]],
    updates: Callable[[], int],
) -> ScoreResponse:
    """Scores all sequences at once, and again if an update comes meanwhile.

    score: returns the scores of a sequence at a temperature. updates: returns the number of updates so far.
    Raises ContractError if an update comes during each of TRIES tries.
    """
    for _ in range(TRIES):
        before = updates()
        scores = await _score_all(request, score)
        if updates() == before:
            return ScoreResponse(logprobs=[one.logprobs for one in scores], version=scores[0].version)
    raise ContractError(
        ErrorCode.OVERLOADED,
        f"sequences: the weights changed {TRIES} times while {len(scores)} were scored; send fewer at a time",
    )


async def _score_all(
    request: ScoreRequest, score: Callable[[list[int], float], Awaitable[Scores]]
) -> list[Scores]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(score(ids, request.temperature)) for ids in request.sequences]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
