"""uvicorn's HTTP protocol with the contract's limits on connections and headers, and its error bodies."""

import asyncio
import contextlib
import resource
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from contracts.errors import ContractError, ErrorCode
from contracts.limits import Limits
from inference_adapters.error_answers import error_answer, error_body

OTHER_FILES = 256  # file descriptors that a server needs besides its connections
SPARE = 256  # connections beyond the limit that get an error response; further ones are closed at once
OVERLOADED = ContractError(ErrorCode.OVERLOADED, "too many connections; ask again later")


def limits_here(limits: Limits) -> Limits:
    """Raises RLIMIT_NOFILE as far as needed and allowed. Returns `limits` with the possible connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections + OTHER_FILES + SPARE
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = min(limits.max_connections, soft - OTHER_FILES - SPARE)
    return limits.model_copy(update={"max_connections": possible})


async def overloaded(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI app of a connection beyond the limit: it responds with `overloaded`."""
    await error_answer(OVERLOADED, scope["path"], {"Connection": "close"})(scope, receive, send)


class LimitedProtocol(H11Protocol):
    """One connection, with a timeout for headers and for the rest of a refused body."""

    def __init__(self, limits: Limits, **options: Any):
        super().__init__(**options)
        self.limits = limits
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        excess = len(self.connections) - self.limits.max_connections
        if excess > SPARE:
            transport.abort()
        elif excess > 0:
            self.app = overloaded
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_watching()

    def send_400_response(self, msg: str) -> None:
        body = error_body(ContractError(ErrorCode.BAD_REQUEST, msg))
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        response = h11.Response(status_code=400, headers=[*headers, ("Connection", "close")])
        with contextlib.suppress(h11.LocalProtocolError):  # a response has begun
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def _watch(self) -> None:
        """Starts the timer if the client must send a header or the rest of a refused body, else stops it."""
        refused = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        if self.conn.their_state is not h11.IDLE and not refused:
            self._stop_watching()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.limits.header_timeout_s, self._too_slow)

    def _stop_watching(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        begun, _ = self.conn.trailing_data
        if begun and self.conn.their_state is h11.IDLE:
            self.send_400_response(f"the header was not complete after {self.limits.header_timeout_s:g} s")
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: a request to upgrade gets a normal response."""
