"""The servers that may get traffic, and how many requests each has in flight.

The actor names the servers after every `WeightsPublished`; the gate closes them all for
`schedule: async`. Knows nothing of HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class _Server:
    url: str
    in_flight: int = 0
    failures: int = 0  # since its last success or publication


class ServerPool:
    """Hands out servers, the least busy first, never more than `limit` requests to each."""

    def __init__(self, limit: int):
        self._limit = limit
        self._servers: dict[str, _Server] = {}
        self._open = True
        self._changed = asyncio.Condition()

    @property
    def capacity(self) -> int:
        return self._limit * len(self._servers)

    @property
    def in_flight(self) -> int:
        return sum(server.in_flight for server in self._servers.values())

    async def set_servers(self, urls: Iterable[str]) -> None:
        """Route to these and no others; a server named again is given another chance."""
        kept = self._servers
        self._servers = {url: kept.get(url) or _Server(url) for url in urls}
        for server in self._servers.values():
            server.failures = 0
        await self._wake()

    async def close_gate(self) -> None:
        """Start no request, and return when none is in flight."""
        self._open = False
        async with self._changed:
            await self._changed.wait_for(lambda: self.in_flight == 0)

    async def open_gate(self) -> None:
        self._open = True
        await self._wake()

    @asynccontextmanager
    async def server(self) -> AsyncIterator[str]:
        """The URL to send one request to; an exception inside counts against that server."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._choose() is not None)
            chosen = self._choose()
            chosen.in_flight += 1
        try:
            yield chosen.url
            chosen.failures = 0
        except Exception:
            chosen.failures += 1
            raise
        finally:
            chosen.in_flight -= 1
            await self._wake()

    def _choose(self) -> _Server | None:
        free = [s for s in self._servers.values() if s.in_flight < self._limit] if self._open else []
        return min(free, key=lambda s: (s.failures, s.in_flight), default=None)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()
