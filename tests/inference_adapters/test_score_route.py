"""A request for scores ends if its client leaves, or lost weights do not come back."""

import asyncio
import json

import pytest
from fastapi import APIRouter, FastAPI

from contracts.errors import ContractError, ErrorCode
from inference_adapters.completion_slots import CompletionSlots
from inference_adapters.held_requests import HeldRequests
from inference_adapters.score_route import add_score_route
from inference_adapters.scripted import ScriptedEngine
from tests.limits import HANG_S

pytestmark = pytest.mark.asyncio

BODY = {"type": "http.request", "body": json.dumps({"sequences": [[1, 2]]}).encode()}
SCOPE = {"type": "http", "method": "POST", "path": "/score", "query_string": b"", "headers": []}
SCOPE["headers"] = [(b"content-type", b"application/json")]


class Waiting(ScriptedEngine):
    """Calls `then` once it scores, and never ends."""

    def __init__(self, then):
        super().__init__()
        self.then = then
        self.cancelled = False

    async def score(self, request):
        self.then()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True


async def ask(engine: ScriptedEngine, gone: asyncio.Event, held: HeldRequests) -> CompletionSlots:
    """Asks for scores, and leaves when `gone` is set. Returns the slots of the server."""
    slots = CompletionSlots()
    router = APIRouter()
    add_score_route(router, engine, slots, held)
    app = FastAPI()
    app.include_router(router)
    messages = [BODY]

    async def receive():
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    await app(SCOPE, receive, send)
    return slots


async def test_scoring_stops_when_the_client_leaves():
    gone = asyncio.Event()
    engine = Waiting(then=gone.set)
    slots = await ask(engine, gone, HeldRequests(HANG_S))
    assert engine.cancelled and slots.taken == 0


async def test_scoring_stops_when_lost_weights_do_not_come_back():
    held = HeldRequests(HANG_S)
    held.begin(ErrorCode.WEIGHTS_LOST, "the weights did not come back in time")
    engine = Waiting(then=held.timed_out.set)
    with pytest.raises(ContractError, match="did not come back in time") as failed:
        await ask(engine, asyncio.Event(), held)
    held.end()
    assert failed.value.code is ErrorCode.WEIGHTS_LOST and engine.cancelled
