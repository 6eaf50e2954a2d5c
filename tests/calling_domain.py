"""A domain for tests that owns an HTTP client, and the server that it asks for every reward."""

import asyncio
import os
from pathlib import Path

import aiohttp
from aiohttp import web

from contracts.support.addresses import LOOPBACK
from pipelinerl.domains.base import Attempt, ChatClient, Problem
from tests.scripted_domain import ScriptedDomain


class CallingDomain(ScriptedDomain):
    """log: a file that gets a line with the process's id when the domain opens, and one when it closes."""

    name = "calling"

    def __init__(self, seed: int, log: str):
        super().__init__(seed)
        self._log = Path(log)

    async def open(self) -> None:
        self._service = web.AppRunner(_judge())
        await self._service.setup()
        site = web.TCPSite(self._service, LOOPBACK, 0)
        await site.start()
        host, port = self._service.addresses[0]
        self._session = aiohttp.ClientSession(f"http://{host}:{port}")
        self._note("opened")

    async def close(self) -> None:
        await self._session.close()
        await self._service.cleanup()
        await asyncio.sleep(0)  # a close that waits, as real ones do
        self._note("closed")

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        attempt = await super().rollout(client, problem)
        async with self._session.post("/judge", json=attempt.reward) as answer:
            return Attempt(attempt.completions, await answer.json(), attempt.success)

    def _note(self, word: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{word} {os.getpid()}\n")


def _judge() -> web.Application:
    async def judge(request: web.Request) -> web.Response:
        return web.json_response(await request.json())

    app = web.Application()
    app.router.add_post("/judge", judge)
    return app
