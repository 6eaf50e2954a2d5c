"""Scores of sequences as an engine returns them, and of a request by one version.

The latter is for engines that read prompts beside generation and its updates.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from contracts.errors import ContractError, ErrorCode
from contracts.inference import ScoreRequest, ScoreResponse

TRIES = 4
AT_A_TIME = 16  # sequences in the engine, so that others do not wait for a whole request


class Scores(NamedTuple):
    """The log-probabilities of a sequence's ids but the first, and the version at the last.

    top: the likeliest ids in the place of each, with their log-probabilities. Empty unless asked for.
    """

    logprobs: list[float]
    version: int
    top: Sequence[list[tuple[int, float]]] = ()


Score = Callable[[list[int], float, int], Coroutine[Any, Any, Scores | None]]
"""Scores a sequence at a temperature, with so many of the likeliest ids. None if it was aborted."""


def score_response(request: ScoreRequest, scores: Sequence[Scores]) -> ScoreResponse:
    """Returns the response to `request` with the scores of its sequences."""
    answer = ScoreResponse(logprobs=[one.logprobs for one in scores], version=scores[0].version)
    if request.top_logprobs:
        answer.top_token_ids = [[[i for i, _ in pairs] for pairs in one.top] for one in scores]
        answer.top_logprobs = [[[logprob for _, logprob in pairs] for pairs in one.top] for one in scores]
    return answer


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
            return score_response(request, scores)
    raise ContractError(
        ErrorCode.OVERLOADED,
        f"sequences: {TRIES} times, an update came while {len(scores)} were scored; send fewer at a time",
    )


async def _score_all(request: ScoreRequest, score: Score) -> list[Scores | None]:
    places = asyncio.Semaphore(AT_A_TIME)

    async def score_one(token_ids: list[int]) -> Scores | None:
        async with places:
            scores = await score(token_ids, request.temperature, request.top_logprobs)
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
