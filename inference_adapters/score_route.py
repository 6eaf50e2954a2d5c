"""The route `/score` over an engine's `score`. It is called by `generation_routes`."""

import asyncio

from fastapi import APIRouter

from contracts.errors import ContractError, ErrorCode
from contracts.inference import ScoreRequest, ScoreResponse, TokenEngine
from inference_adapters.places import Places


def add_score_route(router: APIRouter, engine: TokenEngine, places: Places) -> None:
    """Adds the route to `router`. A score takes one of the places."""
    scoring = asyncio.Lock()

    @router.post("/score")
    async def score(request: ScoreRequest) -> ScoreResponse:
        if "score" not in engine.info().capabilities:
            raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, "this server does not offer /score")
        for token_ids in request.sequences:  # before any is read
            if not token_ids:
                raise ContractError(ErrorCode.INVALID_REQUEST, "sequences: one of them is empty", "sequences")
            if len(token_ids) > engine.max_context():
                raise ContractError(
                    ErrorCode.CONTEXT_LENGTH,
                    f"sequences: {len(token_ids)} tokens; the context is {engine.max_context()}",
                    "sequences",
                )
        with places.held(1):
            async with scoring:  # one after the other: each fills the engine's batches by itself
                return await engine.score(request)
