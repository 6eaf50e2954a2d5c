"""A source of a store over HTTP that notes what it is asked, and misbehaves as it is told."""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

PIECE_BYTES = 16 * 2**10


@dataclass
class Asked:
    """One request: what it asked for, and how many bytes it got."""

    path: str
    start: int
    sent: int = 0


class HttpSource:
    """Serves a store. A fault answers requests for the paths that begin with its key."""

    def __init__(self, store: Path):
        self.store = store
        self.asked: list[Asked] = []
        self.faults: dict[str, Fault] = {}
        self.silent = asyncio.Event()  # set once a fault sends nothing more, or hardly anything
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def sent(self, prefix: str = "objects/") -> int:
        """Returns the bytes of bodies that were sent for paths with this prefix."""
        return sum(asked.sent for asked in self.asked if asked.path.startswith(prefix))

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    async def start(self) -> None:
        """Begins to serve, on the port that it had before."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> "HttpSource":
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        start = int((re.match(r"bytes=(\d+)-", request.headers.get("Range", "")) or ["", "0"])[1])
        asked = Asked(path, start)
        self.asked.append(asked)
        for prefix, fault in self.faults.items():
            if path.startswith(prefix):
                return await fault(self, request, asked)
        return await self.serve(request, asked)

    async def serve(self, request: web.Request, asked: Asked, change=lambda data: data) -> web.StreamResponse:
        """Answers with the file, after `change` of its content."""
        try:
            data = change((self.store / asked.path).read_bytes())
        except FileNotFoundError:
            return web.Response(status=404)
        etag = hashlib.sha256(data).hexdigest()
        if request.headers.get("If-None-Match") == f'"{etag}"':
            return web.Response(status=304)
        headers = {"ETag": f'"{etag}"', "Content-Length": str(len(data) - asked.start)}
        if asked.start:
            headers["Content-Range"] = f"bytes {asked.start}-{len(data) - 1}/{len(data)}"
        response = web.StreamResponse(status=206 if asked.start else 200, headers=headers)
        return await self.send(request, asked, response, data[asked.start :])

    async def send(
        self, request: web.Request, asked: Asked, response: web.StreamResponse, data: bytes
    ) -> web.StreamResponse:
        with contextlib.suppress(ConnectionError):  # the puller has hung up
            await response.prepare(request)
            for at in range(0, len(data), PIECE_BYTES):
                await response.write(data[at : at + PIECE_BYTES])
                asked.sent += len(data[at : at + PIECE_BYTES])
        return response


Fault = Callable[[HttpSource, web.Request, Asked], Awaitable[web.StreamResponse]]


def status(number: int, **headers: str) -> Fault:
    async def fault(source: HttpSource, request: web.Request, asked: Asked) -> web.StreamResponse:
        return web.Response(status=number, headers=headers)

    return fault


def changed(change: Callable[[bytes], bytes]) -> Fault:
    """Returns the fault of a source whose file is another one, and which states its length."""

    async def fault(source: HttpSource, request: web.Request, asked: Asked) -> web.StreamResponse:
        return await source.serve(request, asked, change)

    return fault


def with_headers(**headers: str) -> Fault:
    """Returns the fault of a source that sends the whole file with other headers."""

    async def fault(source: HttpSource, request: web.Request, asked: Asked) -> web.StreamResponse:
        data = (source.store / asked.path).read_bytes()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        number = 206 if "Content-Range" in names else 200
        return await source.send(request, asked, web.StreamResponse(status=number, headers=names), data)

    return fault


def chunked(change: Callable[[bytes], bytes]) -> Fault:
    """Returns the fault of a source that states no length."""

    async def fault(source: HttpSource, request: web.Request, asked: Asked) -> web.StreamResponse:
        data = change((source.store / asked.path).read_bytes())
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        return await source.send(request, asked, response, data)

    return fault


def cut_off(share: float) -> Fault:
    """Returns the fault of a source that ends the connection after a share of the file."""

    async def fault(source: HttpSource, request: web.Request, asked: Asked) -> web.StreamResponse:
        data = (source.store / asked.path).read_bytes()
        headers = {"Content-Length": str(len(data) - asked.start)}
        if asked.start:
            headers["Content-Range"] = f"bytes {asked.start}-{len(data) - 1}/{len(data)}"
        response = web.StreamResponse(status=206 if asked.start else 200, headers=headers)
        await source.send(request, asked, response, data[asked.start : int(share * len(data))])
        request.transport.close()
        return response

    return fault


async def hang(source: HttpSource, request: web.Request, asked: Asked) -> web.StreamResponse:
    """Never answers."""
    source.silent.set()
    await asyncio.Event().wait()
    raise AssertionError


def stalled(share: float) -> Fault:
    """Returns the fault of a source that falls silent after a share of the file."""

    async def fault(source: HttpSource, request: web.Request, asked: Asked) -> web.StreamResponse:
        data = (source.store / asked.path).read_bytes()
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await source.send(request, asked, response, data[: int(share * len(data))])
        return await hang(source, request, asked)

    return fault


async def trickle(source: HttpSource, request: web.Request, asked: Asked) -> web.StreamResponse:
    """Sends a byte at a time, as often as the loop comes round."""
    data = (source.store / asked.path).read_bytes()
    response = web.StreamResponse(headers={"Content-Length": str(len(data))})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for byte in data:
            await response.write(bytes([byte]))
            asked.sent += 1
            source.silent.set()
            await asyncio.sleep(0.001)
    return response
