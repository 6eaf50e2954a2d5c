"""Ends vLLM's requests that wait for lost weights, once the weights have been given up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from contracts.errors import ContractError, ErrorCode
from inference_adapters.vllm.engine import VllmEngine
from inference_adapters.weight_updates import WeightUpdates


@contextlib.asynccontextmanager
async def ended_when_lost(engine: VllmEngine, updates: WeightUpdates) -> AsyncIterator[None]:
    """Ends the requests that wait for lost weights once the weights have been given up."""

    async def give_up() -> None:
        await updates.ledger.weights_given_up.wait()
        await engine.abort_requests()

    task = asyncio.create_task(give_up())
    try:
        yield
    finally:
        task.cancel()
    if updates.ledger.weights_given_up.is_set():
        raise ContractError(ErrorCode.WEIGHTS_LOST, "the weights were lost and did not come back in time")
