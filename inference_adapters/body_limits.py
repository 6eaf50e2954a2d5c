"""Middleware that reads request bodies, and refuses those that are too large, too slow or invalid JSON."""

import asyncio

from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.errors import ContractError, ErrorCode
from contracts.limits import Limits
from contracts.schema.routes import ROUTES
from inference_adapters.error_answers import error_answer

LARGE = {route.path for route in ROUTES if route.body_limit == "max_body_bytes"}
OPEN = "/health"  # needs no token, so a body is not accepted
MAX_RECEIVING_BYTES = 2**29


class BodyLimits:
    """Middleware that calls the app after the complete body has arrived and is valid JSON.

    most_receiving: bytes of all bodies that are being received.
    """

    def __init__(self, app: ASGIApp, limits: Limits, most_receiving: int = MAX_RECEIVING_BYTES):
        self.app = app
        self.limits = limits
        self.most_receiving = most_receiving
        self.receiving_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
            self.check(scope, body)
        except ContractError as error:
            await error_answer(error, scope["path"])(scope, receive, send)
        except ClientDisconnect:
            pass
        else:
            await self.app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """Returns the body. Raises ContractError if it is too large or too slow."""
        limit = self.limit_of(scope["path"])
        timeout_s = self.limits.body_timeout_s
        if _declared_length(scope) > limit:
            raise ContractError(
                ErrorCode.TOO_LARGE, f"a body of {_declared_length(scope)} bytes; at most {limit}"
            )
        body = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                async for chunk in _chunks(receive):
                    body += chunk
                    self.receiving_bytes += len(chunk)
                    if len(body) > limit:
                        raise ContractError(ErrorCode.TOO_LARGE, f"a body of more than {limit} bytes")
                    if self.receiving_bytes > self.most_receiving:
                        raise ContractError(ErrorCode.OVERLOADED, "too many large bodies at one time")
        except TimeoutError:
            raise ContractError(
                ErrorCode.BAD_REQUEST, f"the body was not complete after {timeout_s:g} s"
            ) from None
        finally:
            self.receiving_bytes -= len(body)
        return bytes(body)

    def check(self, scope: Scope, body: bytes) -> None:
        """Raises ContractError if the app must not get the body."""
        check_json(scope, body)

    def limit_of(self, path: str) -> int:
        """Returns the largest body of a route, in bytes."""
        if path == OPEN:
            return 0
        return self.limits.max_body_bytes if path in LARGE else self.limits.max_generation_bytes


def check_json(scope: Scope, body: bytes) -> None:
    """Raises ContractError if the body is invalid JSON, nested too deeply, or has half a surrogate pair."""
    headers = dict(scope["headers"])
    if not body or headers.get(b"content-type", b"").startswith(b"multipart/"):
        return
    try:
        from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ContractError(ErrorCode.BAD_REQUEST, f"the body is no valid JSON: {error}") from error


def _declared_length(scope: Scope) -> int:
    length = dict(scope["headers"]).get(b"content-length", b"")
    return int(length[:20]) if length[:20].isdigit() else 0


async def _chunks(receive: Receive):
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` whose first message is the complete body."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message
