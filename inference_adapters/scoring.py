"""Scores sequences by one version, for engines that read prompts beside generation and its updates."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from contracts.errors import ContractError, ErrorCode
from contracts.inference import ScoreRequest, ScoreResponse

TRIES = 4
AT_A_TIME = 64  # sequences in the engine, so that others do not wait for a whole request


class Scores(NamedTuple):
    """The log-probabilities of a sequence's ids but the first, and the version at the last."""

    logprobs: list[float]
    version: int


Score = Callable[[list[int], float], Coroutine[Any, Any, Scores | None]]
"""Scores a sequence at a temperature. None if it was aborted."""


async def score_by_one_version(
    request: ScoreRequest,
    score: Score,
    updates: Callable[[], int],
) -> ScoreResponse:
    """Scores all sequences at once, and again if an update comes meanwhile or one was aborted.

    updates: returns the number of updates so far. Raises ContractError if TRIES tries are not enough.
    """
    for _ in range(TRIES):
        before = updates()
        scores = await _score_all(request, score)
        if updates() == before and all(scores):
            return ScoreResponse(logprobs=[one.logprobs for one in scores], version=scores[0].version)
    raise ContractError(
        ErrorCode.OVERLOADED,
        f"sequences: {TRIES} times, an update came while {len(scores)} were scored; send fewer at a time",
    )


async def _score_all(request: ScoreRequest, score: Score) -> list[Scores | None]:
    places = asyncio.Semaphore(AT_A_TIME)

    async def score_one(token_ids: list[int]) -> Scores | None:
        async with places:
            scores = await score(token_ids, request.temperature)
        if scores and len(scores.logprobs) != len(token_ids) - 1:
            why = f"the engine scored {len(scores.logprobs)} of {len(token_ids) - 1} tokens"
            raise ContractError(ErrorCode.ENGINE_FAILED, why)
        return scores

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(score_one(token_ids)) for token_ids in request.sequences]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
