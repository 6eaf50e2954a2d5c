"""The route `/score` over an engine's `score`. `generation_routes` calls it."""

import asyncio

from fastapi import APIRouter

from contracts.errors import ContractError, ErrorCode
from contracts.inference import ScoreRequest, ScoreResponse, TokenEngine
from inference_adapters.places import Places


def add_score_route(router: APIRouter, engine: TokenEngine, places: Places) -> None:
    """Adds the route to `router`. A request to score occupies one of the slots."""
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
        with places.held(1):
            async with scoring:  # one request after the other: each fills the engine's batches by itself
                return await engine.score(request)
