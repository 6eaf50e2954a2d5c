"""An origin and relays on this machine, in a process of their own, each with an uplink of its own.

A relay is a pull-through cache: what it does not have it fetches from the origin, once, and keeps.
"""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from aiohttp import ClientSession, web

from benchmarks.ranges import begin
from benchmarks.weight_transports.throttle import TokenBucket

PIECE = 64 << 10
STARTS_WITHIN_S = 60


@dataclass(frozen=True)
class Uplink:
    """A server of the network. dies_after, corrupts_after: bytes that it sends before it does."""

    bytes_per_s: float
    dies_after: float = float("inf")
    corrupts_after: float = float("inf")


class _Server:
    """Answers requests at the speed of its uplink."""

    def __init__(self, uplink: Uplink):
        self._uplink = uplink
        self._bucket = TokenBucket(uplink.bytes_per_s)
        self._sent = 0

    async def content(self, path: str) -> bytes | None:
        raise NotImplementedError

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self._die_if_it_is_time(request)
        body = await self.content(request.path.lstrip("/"))
        if body is None:
            raise web.HTTPNotFound
        response, asked = begin(request, body)
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # of a client that gave up
            for at in range(0, len(asked), PIECE):
                await self._send(request, response, asked[at : at + PIECE])
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, piece: bytes) -> None:
        await self._bucket.send(len(piece))
        self._sent += len(piece)
        self._die_if_it_is_time(request)
        if self._sent > self._uplink.corrupts_after:
            piece = bytes([piece[0] ^ 1]) + piece[1:]
        await response.write(piece)

    def _die_if_it_is_time(self, request: web.Request) -> None:
        if self._sent > self._uplink.dies_after:
            request.transport.abort()
            raise ConnectionResetError

    async def serve(self) -> str:
        """Starts to serve. Returns the URL."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/"


class _Origin(_Server):
    def __init__(self, uplink: Uplink, store: Path):
        super().__init__(uplink)
        self._store = store

    async def content(self, path: str) -> bytes | None:
        file = self._store / path
        return file.read_bytes() if file.is_file() else None


class _Relay(_Server):
    def __init__(self, uplink: Uplink, origin: str, session: ClientSession):
        super().__init__(uplink)
        self._origin = origin
        self._session = session
        self._kept: dict[str, asyncio.Task[bytes | None]] = {}

    async def content(self, path: str) -> bytes | None:
        if path not in self._kept or path.endswith("latest.json"):
            self._kept[path] = asyncio.create_task(self._fetch(path))
        body = await self._kept[path]
        if body is None:
            self._kept.pop(path, None)
        return body

    async def _fetch(self, path: str) -> bytes | None:
        async with self._session.get(self._origin + path) as response:
            return await response.read() if response.status == 200 else None


@contextlib.contextmanager
def network(store: Path, origin: Uplink, relays: list[Uplink]) -> Iterator[tuple[str, list[str]]]:
    """Serves the store for the block. Yields the URLs of the origin and of the relays."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_run, args=(store, origin, relays, there), daemon=True)
    process.start()
    try:
        if not here.poll(STARTS_WITHIN_S):
            raise RuntimeError("the network of the benchmark does not start")
        yield here.recv()
    finally:
        process.kill()
        process.join()


def _run(store: Path, origin: Uplink, relays: list[Uplink], urls: Connection) -> None:
    asyncio.run(_serve(store, origin, relays, urls))


async def _serve(store: Path, origin: Uplink, relays: list[Uplink], urls: Connection) -> None:
    async with ClientSession() as session:
        first = await _Origin(origin, store).serve()
        urls.send((first, [await _Relay(uplink, first, session).serve() for uplink in relays]))
        await asyncio.Event().wait()
