"""A source of the kit: serves a store over HTTP, records requests, and simulates faults.

It runs in the kit's event loop. It must not depend on guarantees.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web

from extensions.stored_weights.conformance.faults import Fault
from extensions.stored_weights.store.layout import object_path

RIGHT = Fault("nothing")
PIECES = 40  # pieces per second of a body with a limited rate
PIECE = 2**16  # bytes of a piece otherwise
OBJECTS = "objects/"
TREE = (OBJECTS, "runs/")
QUIET = logging.getLogger(f"{__name__}.quiet")  # logs nothing: connections are closed on purpose
QUIET.setLevel(logging.CRITICAL + 1)


@dataclass
class Asked:
    """One request that a source received."""

    path: str
    start: int  # first requested byte
    sent: int = 0  # bytes of the body that were sent


class Source:
    """Serves a store. `faults`: path -> fault. `fault`: fault of all objects."""

    def __init__(self, store: Path, address: str):
        self.store = store
        self.address = address
        self.port = 0
        self.asked: list[Asked] = []
        self.faults: dict[str, Fault] = {}
        self.fault: Fault | None = None
        self.pace: float | None = None  # bytes per second of each object
        self.open = asyncio.Event()  # requests for objects wait until it is set
        self.open.set()
        self.after: asyncio.Event | None = None  # requests for objects also wait for this event
        self.dies_after: float | None = None  # bytes of objects after which the source dies
        self.died = asyncio.Event()
        self.met = asyncio.Event()  # set by the first request for an object
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    # --- recorded requests

    def times(self, path: str) -> int:
        """Returns the number of requests for a file."""
        return sum(asked.path == path for asked in self.asked)

    def sent(self, objects: Iterable[str]) -> int:
        """Returns the number of bytes sent of these objects."""
        paths = {object_path(name) for name in objects}
        return sum(asked.sent for asked in self.asked if asked.path in paths)

    def object_requests(self, objects: Iterable[str]) -> int:
        """Returns the number of requests for these objects."""
        return sum(self.times(object_path(name)) for name in set(objects))

    # --- serving

    async def start(self) -> None:
        """Starts to serve, at the same port as before."""
        self.died.clear()
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, logger=QUIET, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.address, self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Closes the port and every connection."""
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Source"]:
        """Serves until the block ends."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        start = _first_byte(request)
        asked = Asked(path, start)
        self.asked.append(asked)
        if self.died.is_set():
            _disconnect(request)
            return web.Response(status=503)
        if path.startswith(OBJECTS):
            self.met.set()
            if self.after:
                await self.after.wait()
            await self.open.wait()
        fault = self._fault_of(path)
        if not fault.answers:
            await asyncio.Event().wait()
        if fault.location:
            raise web.HTTPFound(f"{fault.location}/{path}")
        data = self._read(path)
        if data is None or fault.status != 200:
            status = 404 if data is None else fault.status
            return web.Response(status=status, headers={"Cache-Control": "no-store"})
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304, headers={"ETag": etag})
        if start and start >= len(data):
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
        return await self._send(request, asked, data, fault, etag)

    def _fault_of(self, path: str) -> Fault:
        if fault := self.faults.get(path):
            return fault
        if not path.startswith(OBJECTS):
            return RIGHT
        fault = self.fault or RIGHT
        return replace(fault, pace=fault.pace or self.pace)

    def _read(self, path: str) -> bytes | None:
        if not path.startswith(TREE) or ".." in path:
            return None
        with contextlib.suppress(OSError):
            return (self.store / path).read_bytes()
        return None

    async def _send(
        self, request: web.Request, asked: Asked, right: bytes, fault: Fault, etag: str
    ) -> web.StreamResponse:
        whole = fault.body(right)
        body = whole[asked.start :]
        length = fault.states(whole)
        response = web.StreamResponse(status=206 if asked.start else 200)
        response.headers["ETag"] = etag
        response.headers["Accept-Ranges"] = "bytes"
        if asked.start:
            last = (length or len(whole)) - 1
            response.headers["Content-Range"] = f"bytes {asked.start}-{last}/{last + 1}"
        if length is None:
            response.enable_chunked_encoding()
        else:
            response.content_length = length - asked.start
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # the server has hung up
            # The header is sent with the first byte.
            size = max(1, int(fault.after * len(body)))
            await self._write(request, response, asked, body[:size], fault)
            if fault.after < 1:
                await asyncio.Event().wait()
            if length is not None and length != len(whole):
                _disconnect(request)
        return response

    async def _write(
        self, request: web.Request, response: web.StreamResponse, asked: Asked, body: bytes, fault: Fault
    ) -> None:
        size = max(1, int(fault.pace / PIECES)) if fault.pace else PIECE
        for start in range(0, len(body), size):
            piece = body[start : start + size]
            if asked.path.startswith(OBJECTS):
                piece = self._before_death(piece)
            await response.write(piece)
            asked.sent += len(piece)
            if self.died.is_set():
                _disconnect(request)
                return
            if fault.pace:
                await asyncio.sleep(len(piece) / fault.pace)

    def _before_death(self, piece: bytes) -> bytes:
        """Returns the part of `piece` that is sent before the source dies."""
        if self.dies_after is None:
            return piece
        piece = piece[: int(self.dies_after)]
        self.dies_after -= len(piece)
        if self.dies_after < 1:
            self.dies_after = None
            self.died.set()
        return piece


def _first_byte(request: web.Request) -> int:
    found = re.fullmatch(r"bytes=(\d+)-\d*", request.headers.get("Range", ""))
    return int(found[1]) if found else 0


def _disconnect(request: web.Request) -> None:
    if request.transport:
        request.transport.close()
