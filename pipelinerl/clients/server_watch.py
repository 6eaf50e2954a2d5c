"""Polls the health of the servers of some pools, and takes servers that do not answer out of service.

Used by the actor. Any answer counts, so a server that loads weights keeps its requests. `/health` needs no
token.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import aiohttp

from pipelinerl.clients.background import in_background
from pipelinerl.clients.server_pool import ServerPool

log = logging.getLogger(__name__)

State = Literal["ready", "busy"]

EVERY_S = 2.0
ANSWER_TIMEOUT_S = 4.0
MISSES = 3  # consecutive missing answers after which a server is left out


@asynccontextmanager
async def watching(pools: Sequence[ServerPool]) -> AsyncIterator[None]:
    async with in_background(ServerWatch(pools).run()):
        yield


class ServerWatch:
    def __init__(self, pools: Sequence[ServerPool]):
        self._pools = pools
        self._misses: Counter[str] = Counter()  # consecutive missing answers, by server

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            while True:
                await self.ask_all(session)
                await asyncio.sleep(EVERY_S)

    async def ask_all(self, session: aiohttp.ClientSession) -> None:
        urls = sorted({url for pool in self._pools for url in pool.urls})
        self._misses = Counter({url: self._misses[url] for url in urls})  # drops servers that have left
        states = await asyncio.gather(*(_state(session, url) for url in urls))
        if any(states):  # if no server answers, this machine's network may be the cause
            for url, state in zip(urls, states, strict=True):
                self._note(url, state)

    def _note(self, url: str, state: State | None) -> None:
        if state is None:
            self._misses[url] += 1
            if self._misses[url] == MISSES:
                log.warning("%s has not answered %d times in a row", url, MISSES)
            if self._misses[url] >= MISSES:
                for pool in self._pools:
                    pool.leave_out(url)
        elif state == "ready":
            if self._misses.pop(url, 0) >= MISSES:
                log.warning("%s is ready again", url)
            for pool in self._pools:
                pool.take_back(url)
        elif self._misses[url] < MISSES:
            self._misses[url] = 0


async def _state(session: aiohttp.ClientSession, url: str) -> State | None:
    """Returns the server's state, or None if it does not answer."""
    try:
        async with session.get(f"{url}/health", allow_redirects=False) as answer:
            return "ready" if answer.status == 200 else "busy"
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None
