"""Asks the run's inference servers, all at once, and tells which of them can be published to."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp

from contracts.inference import ContractInfo
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_control import ServerControl

Result = TypeVar("Result")
Failures = dict[ServerControl, Exception]


@dataclass
class Roll:
    """Who can be published to, and who will be able to once it has loaded."""

    ready: dict[ServerControl, ContractInfo] = field(default_factory=dict)
    loading: set[ServerControl] = field(default_factory=set)


class Servers:
    def __init__(self, urls: list[str], token: str | None):
        self._loop = asyncio.Runner()
        self._session = self._loop.run(_opened(token))
        self.all = [ServerControl(self._session, url) for url in urls]

    def run(self, work: Awaitable[Result]) -> Result:
        return self._loop.run(work)

    def ask(
        self, servers: Iterable[ServerControl], question: Callable[[ServerControl], Awaitable[Result]]
    ) -> tuple[dict[ServerControl, Result], Failures]:
        """Asks all at once. Returns the answers and the failures, by server."""
        servers = list(servers)

        async def gathered() -> list[object]:
            return await asyncio.gather(*map(question, servers), return_exceptions=True)

        answers: dict[ServerControl, Result] = {}
        failures: Failures = {}
        for server, answer in zip(servers, self._loop.run(gathered()), strict=True):
            if isinstance(answer, Exception):
                failures[server] = answer
            else:
                answers[server] = answer
        return answers, failures

    def roll(self, patience_s: dict[ServerControl, float]) -> Roll:
        """Asks each for its contract and its health, at most `patience_s` of it."""

        async def look(server: ServerControl) -> tuple[str, ContractInfo | None]:
            async with asyncio.timeout(patience_s[server]):
                status = await server.health_status()
                # While it loads, a server may refuse this question.
                info = None if status == "loading" else await server.contract(patience_s[server])
                return status, info

        roll = Roll()
        answers, _ = self.ask(patience_s, look)
        for server, (status, info) in answers.items():
            if info is None:
                roll.loading.add(server)
            # What made a server unhealthy may be that its weights were lost, which an update mends.
            elif status == "ready" or info.weights.state != "live":
                roll.ready[server] = info
        return roll

    def close(self) -> None:
        self._loop.run(self._session.close())
        self._loop.close()


async def _opened(token: str | None) -> aiohttp.ClientSession:
    return open_session(token)
