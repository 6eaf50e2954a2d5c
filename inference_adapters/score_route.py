"""The route `/score` of an engine that computes log-probabilities of given tokens."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from fastapi import APIRouter

from contracts.errors import ContractError, ErrorCode
from contracts.inference import EngineInfo, ScoreRequest, ScoreResponse
from inference_adapters.completion_slots import CompletionSlots


class Scorer(Protocol):
    """What the route needs of an engine."""

    def info(self) -> EngineInfo: ...

    def max_context(self) -> int: ...

    def score(self, request: ScoreRequest) -> Awaitable[ScoreResponse]: ...


def add_score_route(
    router: APIRouter,
    engine: Scorer,
    slots: CompletionSlots,
    while_scoring: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> None:
    """Adds `/score` to `router`. A request occupies one slot."""
    scoring = asyncio.Lock()

    @router.post("/score")
    async def score(request: ScoreRequest) -> ScoreResponse:
        if "score" not in engine.info().capabilities:
            raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, "this server does not offer /score")
        for token_ids in request.sequences:  # before any sequence is scored
            if not token_ids:
                raise ContractError(ErrorCode.INVALID_REQUEST, "sequences: one of them is empty", "sequences")
            if len(token_ids) > engine.max_context():
                raise ContractError(
                    ErrorCode.CONTEXT_LENGTH,
                    f"sequences: {len(token_ids)} tokens; the context is {engine.max_context()}",
                    "sequences",
                )
        with slots.acquired(1):
            # One request at a time, because each fills the engine's batches.
            async with scoring, while_scoring():
                return await engine.score(request)
