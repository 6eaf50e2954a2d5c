"""A relay of weights: a cache in front of an origin, with three faults on demand.

    python -m benchmarks.frail_relay --origin http://127.0.0.1:8100 --port 8200

SIGUSR2 makes it send wrong bytes, and SIGHUP makes it send slowly. SIGUSR1 makes it break every answer off
in its middle, as one whose disk is full. The same signal ends the fault.
"""

import asyncio
import contextlib
import signal
from collections import OrderedDict

from aiohttp import ClientError, ClientSession, web

from contracts.support.command_line import command_parser

KEPT_BYTES = 128 << 20
PIECE = 64 << 10
SLOW_S = 1.0  # before each piece
MUTABLE = "latest.json"


class Cache:
    """Keeps the newest files of an origin in memory, up to KEPT_BYTES."""

    def __init__(self, session: ClientSession, origin: str):
        self._session = session
        self._origin = origin.rstrip("/")
        self._files: OrderedDict[str, bytes] = OrderedDict()

    async def content(self, path: str) -> bytes | None:
        """Returns the file, or None if the origin has none. Raises ClientError if that does not answer."""
        if path in self._files:
            return self._files[path]
        async with self._session.get(self._origin + path) as response:
            if response.status != 200:
                return None
            body = await response.read()
        if not path.endswith(MUTABLE):
            self._keep(path, body)
        return body

    def _keep(self, path: str, body: bytes) -> None:
        self._files[path] = body
        while sum(map(len, self._files.values())) > KEPT_BYTES:
            self._files.popitem(last=False)


class Relay:
    """Answers requests from a cache, well or with the faults that are on."""

    def __init__(self, cache: Cache):
        self._cache = cache
        self.faults: set[str] = set()

    def toggle(self, fault: str) -> None:
        self.faults ^= {fault}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await self._cache.content(request.path)
        except (ClientError, TimeoutError) as error:
            raise web.HTTPBadGateway from error
        if body is None:
            raise web.HTTPNotFound
        response, asked = begin(request, body)
        with contextlib.suppress(ConnectionResetError):  # of a client that gave up
            await response.prepare(request)
            await self._send(request, response, asked)
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, body: bytes) -> None:
        for at in range(0, len(body), PIECE):
            piece = body[at : at + PIECE]
            if "slow" in self.faults:
                await asyncio.sleep(SLOW_S)
            if "corrupt" in self.faults:
                piece = bytes([piece[0] ^ 1]) + piece[1:]
            if "break off" in self.faults:
                await response.write(piece[: len(piece) // 2])
                return request.transport.abort()
            await response.write(piece)


def begin(request: web.Request, body: bytes) -> tuple[web.StreamResponse, bytes]:
    """Returns the response to prepare, and what it has to send: the file, or its end that was requested."""
    start = request.http_range.start or 0
    response = web.StreamResponse(status=206 if start else 200)
    response.content_length = len(body) - start
    if start:
        response.headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
    return response, body[start:]


FAULTS = {signal.SIGUSR2: "corrupt", signal.SIGUSR1: "break off", signal.SIGHUP: "slow"}


async def serve(origin: str, port: int) -> None:
    """Serves until the process is killed."""
    async with ClientSession() as session:
        relay = Relay(Cache(session, origin))
        for number, fault in FAULTS.items():
            asyncio.get_running_loop().add_signal_handler(number, relay.toggle, fault)
        app = web.Application()
        app.router.add_get("/{path:.*}", relay.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


def main() -> None:
    parser = command_parser("benchmarks.frail_relay", __doc__)
    parser.add_argument("--origin", required=True, help="URL")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.origin, options.port))


if __name__ == "__main__":
    main()
