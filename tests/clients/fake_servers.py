"""Servers over real sockets that respond to completion requests correctly, or with one fault."""

import asyncio
import copy
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.virtual_time import Traffic

HANGS = "hangs"  # the fault of a server that never answers
ROUTES = ("/v1/chat/completions", "/v1/completions")


def good_answer(tokens: int = 2, finish_reason: str = "stop") -> dict:
    return {
        "prompt_token_ids": [1, 2],
        "choices": [
            {
                "token_ids": list(range(3, 3 + tokens)),
                "message": {"content": "hi"},
                "text": "hi",
                "finish_reason": finish_reason,
                "logprobs": {"content": [{"logprob": -0.1}] * tokens},
                "weight_versions": [{"version": 0, "start": 0, "end": tokens}],
            }
        ],
    }


@dataclass
class FakeServer:
    """A server. delay_s: of a correct response. fault: a key of FAULTS, HANGS, or None."""

    delay_s: float = 0.0
    fault: str | None = None
    health_delay_s: float = 0.0
    health_status: int = 200
    finish_reasons: list[str] = field(default_factory=list)  # of the first responses; then "stop"
    capabilities: list[str] | None = None  # None: it has no such route
    array_answer: dict | None = None  # response to a request for arrays; None: refused
    metrics: Callable[[], str] | None = None  # the text of /metrics; None: it has no such route
    contracts: int = 0  # number of requests for `/contract`
    url: str = ""
    requests: list[dict] = field(default_factory=list)
    in_flight: int = 0
    held: int = 0  # requests that wait for time to pass
    most_in_flight: int = 0

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.fault in FAULTS:
                return await FAULTS[self.fault](request)
            await self.hold(self.delay_s)
            if self.requests[-1].get("arrays"):
                if self.array_answer is None:
                    return await _error(400, "unsupported_parameter")(request)
                return web.json_response(self.array_answer)
            tokens = self.requests[-1]["max_tokens"] if "prompt" in self.requests[-1] else 2
            reason = self.finish_reasons.pop(0) if self.finish_reasons else "stop"
            answer = good_answer(tokens, reason)
            answer["prompt_token_ids"] = self.requests[-1].get("prompt", answer["prompt_token_ids"])
            return web.json_response(answer)
        finally:
            self.in_flight -= 1

    async def hold(self, seconds: float) -> None:
        """Waits for so long, or for ever if the server hangs."""
        self.held += 1
        try:
            if self.fault == HANGS:
                await asyncio.Event().wait()
            await asyncio.sleep(seconds)
        finally:
            self.held -= 1

    async def contract(self, request: web.Request) -> web.Response:
        self.contracts += 1
        if self.capabilities is None:
            return web.Response(text="404", status=404)
        return web.json_response({"contract": 2, "capabilities": self.capabilities})

    async def measured(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics()) if self.metrics else web.Response(status=404)

    async def health(self, request: web.Request) -> web.Response:
        await self.hold(self.health_delay_s)
        return web.json_response({"status": "ready"}, status=self.health_status)


@asynccontextmanager
async def serving(*routes: web.RouteDef, traffic: Traffic | None = None, port: int = 0) -> AsyncIterator[str]:
    """Yields the URL of a server with these routes. Its handlers end with their connections."""
    app = web.Application(middlewares=[traffic.of_server] if traffic else [])
    app.add_routes(routes)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def served(*servers: FakeServer, traffic: Traffic | None = None) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for server in servers:
            routes = [web.post(route, server.complete) for route in ROUTES]
            routes.append(web.get("/health", server.health))
            routes.append(web.get("/contract", server.contract))
            routes.append(web.get("/metrics", server.measured))
            server.url = await stack.enter_async_context(serving(*routes, traffic=traffic))
        yield


# --- faults ---------------------------------------------------------------------------------------


def _text(status: int):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="Internal Server Error", status=status)

    return answer


def _error(status: int, code: str):
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": code, "message": "no"}}, status=status)

    return answer


def _body(text: str, status: int = 200):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status, content_type="application/json")

    return answer


def _changed(**choice: object):
    body = copy.deepcopy(good_answer())
    body["choices"][0] |= choice

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 2**16)


async def _compressed(request: web.Request) -> web.Response:
    """Returns a correct response in a compression that was not requested: its length could be unlimited."""
    body = gzip.compress(json.dumps(good_answer()).encode())
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    return web.Response(body=body, headers=headers)


async def _reset(request: web.Request) -> web.Response:
    request.transport.abort()
    return web.Response()


FAULTS = {
    "plain-text 500": _text(500),
    "engine failed": _error(500, "engine_failed"),
    "unhealthy": _error(503, "unhealthy"),
    "bad request": _error(400, "bad_request"),
    "unauthorized": _error(401, "unauthorized"),
    "no such route": _text(404),
    "refused as invalid": _error(422, "invalid_request"),
    "refused with OpenAI's status": _error(400, "invalid_request"),
    "malformed JSON": _body('{"choices": ['),
    "a list": _body("[]"),
    "no choices": _body('{"prompt_token_ids": [1], "choices": []}'),
    "no token ids": _changed(token_ids=None),
    "fewer ids than log-probabilities": _changed(
        token_ids=[3], weight_versions=[{"version": 0, "start": 0, "end": 1}]
    ),
    "versions of the first token alone": _changed(weight_versions=[{"version": 0, "start": 0, "end": 1}]),
    "an older version after a newer one": _changed(
        weight_versions=[{"version": 1, "start": 0, "end": 1}, {"version": 0, "start": 1, "end": 2}]
    ),
    "a message that is a list": _changed(message=[1]),
    "ids beyond 32 bits": _changed(token_ids=[2**40, 1]),
    "ids that are no integers": _changed(token_ids=[1.5, 1]),
    "a log-probability that is not finite": _changed(
        logprobs={"content": [{"logprob": -0.1}, {"logprob": float("-inf")}]}
    ),
    "more tokens than were asked for": _changed(
        token_ids=[3] * 9,
        logprobs={"content": [{"logprob": -0.1}] * 9},
        weight_versions=[{"version": 0, "start": 0, "end": 9}],
    ),
    "no token": _changed(token_ids=[], logprobs={"content": []}, weight_versions=[]),
    "ids beyond the vocabulary": _changed(token_ids=[3, 50]),
    "a version beyond 32 bits": _changed(weight_versions=[{"version": 2**40, "start": 0, "end": 2}]),
    "a version below 0": _changed(weight_versions=[{"version": -1, "start": 0, "end": 2}]),
    "versions that run backwards": _changed(
        weight_versions=[{"version": 0, "start": 0, "end": 3}, {"version": 1, "start": 3, "end": 2}]
    ),
    "an unknown finish reason": _changed(finish_reason="error"),
    "a log-probability that is none": _changed(
        logprobs={"content": [{"logprob": -0.1}, {"logprob": -1e30}]},
    ),
    "a version that nobody made": _changed(weight_versions=[{"version": 1000, "start": 0, "end": 2}]),
    "nested too deeply": _body('{"a":' * 100_000),
    "an error that is nested too deeply": _body('{"a":' * 100_000, 500),
    "no end": endless,
    "compressed": _compressed,
    "aborted": _changed(finish_reason="abort"),
    "connection reset": _reset,
}
