"""The route `/score` of an engine that computes log-probabilities of given tokens."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from fastapi import APIRouter, Request
from fastapi.responses import Response

from contracts.errors import ContractError, ErrorCode
from contracts.inference import EngineInfo, ScoreRequest, ScoreResponse
from inference_adapters.completion_slots import CompletionSlots
from inference_adapters.held_requests import HeldRequests
from inference_adapters.streaming import until, until_disconnect


class Scorer(Protocol):
    """What the route needs of an engine."""

    def info(self) -> EngineInfo: ...

    def max_context(self) -> int: ...

    def score(self, request: ScoreRequest) -> Coroutine[Any, Any, ScoreResponse]: ...


def add_score_route(router: APIRouter, engine: Scorer, slots: CompletionSlots, held: HeldRequests) -> None:
    """Adds `/score` to `router`. A request occupies one slot. `held`: how long requests wait for weights."""
    scoring = asyncio.Lock()

    async def in_turn(request: ScoreRequest) -> ScoreResponse:
        async with scoring:  # one request at a time, because each fills the engine's batches
            scores = await until(held.timed_out.wait(), engine.score(request))
        if scores is None:
            raise held.error()
        return scores

    @router.post("/score", response_model=ScoreResponse)
    async def score(request: ScoreRequest, http: Request) -> ScoreResponse | Response:
        if "score" not in engine.info().capabilities:
            raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, "this server does not offer /score")
        if request.top_logprobs and "score_top" not in engine.info().capabilities:
            why = "top_logprobs: this server does not offer score_top"
            raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, why, "top_logprobs")
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
            return await until_disconnect(http.receive, in_turn(request)) or Response()
