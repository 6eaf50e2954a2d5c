"""Accepts the connections of volunteers, with limits that hold before a TLS handshake."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from contracts.limits import Limits
from extensions.volunteers.gateway.address_limits import network_of
from inference_adapters.http_protocol import LimitedProtocol

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
OF_ADDRESS = 32  # connections
RETRY_S = 0.2  # after a failed accept, for example because there is no descriptor left


class PublicServer(uvicorn.Server):
    """A second server in the process, which leaves the signals to the first one."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """Accepts connections for a server. of_address: the most of one address; None for a proxy's."""

    def __init__(
        self,
        config: uvicorn.Config,
        limits: Limits,
        context: ssl.SSLContext | None,
        of_address: int | None = OF_ADDRESS,
    ):
        self._server = PublicServer(config)
        self._config = config
        self._limits = limits
        self._context = context
        self._of_address = of_address
        self._open: Counter[str] = Counter()  # connections by address
        self._connecting: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket) -> None:
        """Serves until it is cancelled. listening: a socket that does not block."""
        serving = asyncio.create_task(self._server.serve(sockets=[]))
        try:
            while not serving.done():
                await self._accept(listening)
        finally:
            self._server.should_exit = self._server.force_exit = True
            for task in self._connecting:
                task.cancel()
            await asyncio.wait([serving])

    async def _accept(self, listening: socket.socket) -> None:
        try:
            connection, peer = await asyncio.get_running_loop().sock_accept(listening)
        except OSError as error:
            log.warning("a connection could not be accepted: %s", error.strerror)
            await asyncio.sleep(RETRY_S)
            return
        address = network_of(peer[0])
        is_many = self._of_address is not None and self._open[address] >= self._of_address
        if is_many or self._open.total() >= self._limits.max_connections:
            connection.close()
            return
        self._open[address] += 1
        task = asyncio.create_task(self._connect(connection, address))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket, address: str) -> None:
        """Does the handshake, and gives the connection to the server."""
        timeout_s = HANDSHAKE_S if self._context else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                partial(self._protocol, address),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )
        except BaseException as error:
            connection.close()
            self._closed(address)
            if not isinstance(error, OSError | EOFError):  # of handshakes that fail
                raise

    def _protocol(self, address: str) -> "CountedProtocol":
        return CountedProtocol(
            partial(self._closed, address),
            self._limits,
            config=self._config,
            server_state=self._server.server_state,
            app_state={},
        )

    def _closed(self, address: str) -> None:
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]


class CountedProtocol(LimitedProtocol):
    """A connection that says when it is closed."""

    def __init__(self, closed: Any, limits: Limits, **options: Any):
        super().__init__(limits, **options)
        self._closed = closed

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed()
