"""Serves the viewer on this machine until a signal, or until the run has ended."""

import asyncio
import contextlib
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import uvicorn

from contracts.support.addresses import LOOPBACK
from contracts.support.files import write_atomically
from extensions.viewer.run_end import RunEnd, url_path
from extensions.viewer.runs.directory import Runs
from extensions.viewer.server.app import make_app
from extensions.viewer.server.guard import Guard
from pipelinerl.paths import OWNER_ALONE

CHECK_S = 1.0
GRACE_S = 5  # for open requests when the server ends: event streams send `ended`


def serve(runs: Runs, path: Path, port: int, ends_with_run: bool) -> None:
    """Serves until a signal. Raises OSError if the port is taken.

    `ends_with_run`: or until the run at `path` ends. It then reuses the URL of an earlier viewer, if
    possible.
    """
    file = url_path(path) if ends_with_run else None
    known = _known(file) if file else None
    if known and (listening := _listen_if_free(known.port)):
        _serve_at(listening, runs, path, known.token, file)
    else:
        token = known.token if known else secrets.token_urlsafe(24)
        _serve_at(_listen(port), runs, path, token, file)


class Known(NamedTuple):
    """The URL that an earlier viewer of the run wrote for the launcher."""

    port: int
    token: str


def _known(file: Path) -> Known | None:
    try:
        url = urlsplit(file.read_text())
        return Known(url.port or 0, parse_qs(url.query)["token"][0])
    except (OSError, ValueError, KeyError):
        return None


def _listen(port: int) -> socket.socket:
    # With an explicit protocol, because asyncio disables Nagle's algorithm only on such sockets.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
    except OSError as error:
        listening.close()
        raise OSError(
            f"--port {port} cannot be listened at: {error.strerror}; leave it out, or take another"
        ) from error
    listening.listen()
    return listening


def _listen_if_free(port: int) -> socket.socket | None:
    try:
        return _listen(port)
    except OSError:
        return None


class Server(uvicorn.Server):
    """A server that ends its event streams on a signal, so that they need not be aborted."""

    def __init__(self, config: uvicorn.Config, runs: Runs):
        super().__init__(config)
        self._runs = runs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._runs.is_closing = True
        super().handle_exit(sig, frame)


def _serve_at(listening: socket.socket, runs: Runs, path: Path, token: str, file: Path | None) -> None:
    port = listening.getsockname()[1]
    url = f"http://{LOOPBACK}:{port}/?token={token}"
    app = make_app(runs)
    config = uvicorn.Config(
        Guard(app, token, port),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        lifespan="off",
    )
    server = Server(config, runs)
    print(f"view at {url}", flush=True)
    if file:
        file.parent.mkdir(OWNER_ALONE, exist_ok=True)
        write_atomically(file, url, mode=0o600)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server raises its signal again at its end
    try:
        asyncio.run(_run(server, listening, RunEnd(path) if file else None))
    except KeyboardInterrupt:
        pass
    finally:
        runs.close()


async def _run(server: uvicorn.Server, listening: socket.socket, end: RunEnd | None) -> None:
    async with _ending(server, end):
        await server.serve(sockets=[listening])


@contextlib.asynccontextmanager
async def _ending(server: uvicorn.Server, end: RunEnd | None) -> AsyncIterator[None]:
    """Ends the server when the run ends during the block."""

    async def watch(end: RunEnd) -> None:
        while not end.has_come():
            await asyncio.sleep(CHECK_S)
        server.should_exit = True

    task = asyncio.create_task(watch(end)) if end else None
    yield
    if task:
        task.cancel()
