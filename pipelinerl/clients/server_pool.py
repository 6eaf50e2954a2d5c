"""The servers that may get traffic, and how many requests each has in flight.

The actor names the servers after every `WeightsPublished`; the gate closes them all for
`schedule: async`. Knows nothing of HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

SHORTEST_REST_S = 0.2  # after the first failure of a server; doubles with each
LONGEST_REST_S = 10.0


class ServerUnavailableError(Exception):
    """The server could not be reached, or failed a request, so that `ServerPool` rests it. The message is the
    contract's code, or `connection`."""


@dataclass
class _Server:
    url: str
    in_flight: int = 0
    failures: int = 0  # since its last success
    rests_until: float = 0.0  # loop time

    def takes_more(self, limit: int, now: float) -> bool:
        """One that failed rests, and then gets a single request to prove itself with."""
        return self.in_flight < (1 if self.failures else limit) and now >= self.rests_until


class ServerPool:
    """Hands out servers, the least busy first, never more than `limit` requests to each."""

    def __init__(self, limit: int):
        self._limit = limit
        self._servers: dict[str, _Server] = {}
        self._left: dict[str, _Server] = {}  # not routed to any more, with requests in flight
        self._open = True
        self._changed = asyncio.Condition()

    @property
    def capacity(self) -> int:
        """The requests that the pool may have in flight.

        Those still on removed servers do not count against it.
        """
        return self._limit * len(self._servers) + sum(server.in_flight for server in self._left.values())

    @property
    def in_flight(self) -> int:
        return sum(server.in_flight for server in self._servers.values())

    async def set_servers(self, urls: Iterable[str]) -> None:
        """Routes requests to these servers alone, and forgets the earlier failures of each."""
        known = self._left | self._servers
        self._servers = {url: known.get(url) or _Server(url) for url in urls}
        self._left = {u: s for u, s in known.items() if u not in self._servers and s.in_flight}
        for server in self._servers.values():
            server.failures = 0
            server.rests_until = 0.0
        await self._wake()

    async def close_gate(self) -> None:
        """Starts no further request, and returns when none is in flight."""
        self._open = False
        async with self._changed:
            await self._changed.wait_for(lambda: self.in_flight == 0)

    async def open_gate(self) -> None:
        self._open = True
        await self._wake()

    @asynccontextmanager
    async def server(self) -> AsyncIterator[str]:
        """Yields the URL to send one request to. ServerUnavailableError inside counts against that server."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._choose() is not None)
            chosen = self._choose()
            chosen.in_flight += 1
        try:
            yield chosen.url
            chosen.failures = 0
        except ServerUnavailableError:
            self._rest(chosen)
            raise
        finally:
            chosen.in_flight -= 1
            await self._wake()

    def _choose(self) -> _Server | None:
        now = asyncio.get_running_loop().time()
        free = [s for s in self._servers.values() if s.takes_more(self._limit, now)] if self._open else []
        return min(free, key=lambda s: s.in_flight, default=None)

    def _rest(self, server: _Server) -> None:
        server.failures += 1
        rest_s = min(SHORTEST_REST_S * 2 ** (server.failures - 1), LONGEST_REST_S)
        loop = asyncio.get_running_loop()
        server.rests_until = loop.time() + rest_s
        loop.call_later(rest_s, lambda: loop.create_task(self._wake()))

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()
