"""A real server behind a proxy that logs each answer, and an endpoint that asks it."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from contracts.records import Completion
from extensions.agents.endpoint.server import Endpoint
from extensions.agents.endpoint.session import Session
from extensions.agents.options import EndpointOptions
from pipelinerl.clients.completions import Sampling
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.conversations.template import TemplateConversations

HELD = "never "  # begin of a stop text; the answer to such a request never comes
MOST_TOKENS = 30
Tokens = tuple[bytes, bytes, bytes, tuple[tuple[int, int, int], ...]]  # prompt, sampled, logprobs, versions


def tokens_of(completion: Completion) -> Tokens:
    return (
        completion.prompt_token_ids.astype(np.int32).tobytes(),
        completion.token_ids.astype(np.int32).tobytes(),
        completion.logprobs.astype(np.float32).tobytes(),
        tuple((span.version, span.start, span.end) for span in completion.spans),
    )


def answered(body: dict[str, Any]) -> Iterator[Tokens]:
    """Yields the tokens in a server's answer, read without the pipeline's client."""
    for choice in body["choices"]:
        yield (
            np.array(body["prompt_token_ids"], np.int32).tobytes(),
            np.array(choice["token_ids"], np.int32).tobytes(),
            np.array([each["logprob"] for each in choice["logprobs"]["content"]], np.float32).tobytes(),
            tuple((span["version"], span["start"], span["end"]) for span in choice["weight_versions"]),
        )


class Proxy:
    """Passes requests on, and logs requests and answers. It withholds the answers of HELD requests.

    held: an event for each stop text of such a request, set when the server has answered it.
    """

    def __init__(self, url: str, token: str | None = None):
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.requests: list[dict[str, Any]] = []
        self.answers: list[Tokens] = []
        self.held: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._moved = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        connections = aiohttp.TCPConnector(force_close=True)  # a kept one may close under a request
        async with aiohttp.ClientSession(connector=connections, headers=self._headers) as self._http:
            app = web.Application()
            app.router.add_post("/{path:.*}", self._pass)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield
            finally:
                await runner.cleanup()

    async def answered(self, count: int) -> None:
        """Waits for so many further answers."""
        most = len(self.answers) + count
        while len(self.answers) < most:
            self._moved.clear()
            await self._moved.wait()

    async def _pass(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        async with self._http.post(self._url + request.path, json=body) as answer:
            said = await answer.json()
        stop, *_ = body.get("stop", [""])
        if answer.status == 200 and stop.startswith(HELD):
            self.held[stop].set()
            await asyncio.Event().wait()
        if answer.status == 200:
            self.answers.extend(answered(said))
            self._moved.set()
        return web.json_response(said, status=answer.status)


class Sessions:
    """Begins sessions of an endpoint, whose requests go through `proxy`."""

    def __init__(self, endpoint: Endpoint, client: LLMClient, proxy: Proxy):
        self.endpoint = endpoint
        self.proxy = proxy
        self._client = client

    def begin(self, name: str, renders: bool = False, tools: bool = True) -> tuple[Session, str]:
        """Returns a session and its key."""
        session = Session(self._client.of_attempt(name), renders, tools)
        return session, self.endpoint.key_of(session)


@asynccontextmanager
async def sessions_at(
    url: str,
    model: str,
    options: EndpointOptions | None = None,
    token: str | None = None,
    seed: int | None = 0,
) -> AsyncIterator[Sessions]:
    proxy = Proxy(url, token)
    pool = ServerPool(64)
    endpoint = Endpoint(options or EndpointOptions())
    async with proxy.running(), open_session(None) as http:
        await pool.set_servers([proxy.url])
        sampling = Sampling(model, 1.0, MOST_TOKENS, seed=seed)
        client = LLMClient(http, pool, sampling, conversations=TemplateConversations(model))
        await endpoint.open()
        try:
            yield Sessions(endpoint, client, proxy)
        finally:
            await endpoint.close()
