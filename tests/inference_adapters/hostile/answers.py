"""Finds faults in a server's responses to hostile requests."""

import asyncio
import contextlib
import json
from collections import Counter
from urllib.parse import urlsplit

from contracts.errors import ErrorCode
from tests.inference_adapters.hostile.http_bytes import Hostile

PATIENCE_S = 2.0  # for a response: a mutation may request the longest possible completion
CODES = {code.code: code for code in ErrorCode}
FIELDS = {"code", "message", "type", "param"}  # of an error


async def fault_of(url: str, request: Hostile, answers: Counter[int]) -> str | None:
    """Returns the fault of the response, or None. Raises TimeoutError if the request takes long."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        with contextlib.suppress(ConnectionError):  # it may refuse a request before it has read all of it
            writer.write(request.data)
            await writer.drain()
        if request.hang_up == "unread":
            return None
        async with asyncio.timeout(PATIENCE_S):
            received = await _received(reader, 1 if request.hang_up == "after a byte" else None)
    finally:
        writer.close()
    if request.hang_up == "after a byte":
        return None
    return _fault_of_answer(request, received, answers)


async def _received(reader: asyncio.StreamReader, most: int | None) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        while most is None or len(received) < most:
            piece = await reader.read(65536 if most is None else most)
            if not piece:
                break
            received += piece
    return received


def _fault_of_answer(request: Hostile, received: bytes, answers: Counter[int]) -> str | None:
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        return f"no answer: {received[:200]!r}"
    status = int(head[9:12])
    answers[status] += 1
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunked(body)
    shown = f"{status} {body[:300]!r}"
    if status < 400:
        return shown if b"engine_failed" in body else None  # also in a stream
    try:
        code = json.loads(body)["error"]["code"]
        assert set(json.loads(body)) == {"error"} and set(json.loads(body)["error"]) == FIELDS
    except (ValueError, KeyError, TypeError, AssertionError):
        return f"{shown} is not the contract's error"
    path = request.data.split(maxsplit=2)[1].decode(errors="replace")
    if code not in CODES or CODES[code].status_at(path) != status:
        return f"{shown}: that is not the code's status"
    if status >= 500 and code not in ("overloaded", "rendezvous_timeout"):
        return shown
    return None


def _unchunked(body: bytes) -> bytes:
    content = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        content += body[:length]
        body = body[length + 2 :]
    return content
