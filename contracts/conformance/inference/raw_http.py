"""One HTTP exchange over a plain connection, for requests that an HTTP client would not send."""

import asyncio
import contextlib
from collections.abc import Mapping
from urllib.parse import urlsplit

from contracts.conformance.inference.http_client import Answer, decoded
from contracts.conformance.inference.server import Server

PIECE = 2**16  # bytes that are written at a time


async def exchanged(
    server: Server, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> Answer:
    """Returns the status, or 0 without a response, and the decoded body.

    Without a response, the body has `closed` if the server closed the connection. If the response arrives
    early, the rest of the request's body is not sent.
    """
    url = urlsplit(server.url)
    secure = url.scheme == "https"
    port = url.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(url.hostname, port, ssl=secure or None)
    lines = {"Host": url.netloc, "Connection": "close"} | server.headers | dict(headers)
    head = f"{method} {url.path}{path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    sending = asyncio.create_task(_sent(writer, head.encode() + b"\r\n" + body))
    try:
        async with asyncio.timeout(server.http.timeout.total):
            return _answer(await _received(reader))
    except TimeoutError:
        return 0, {"no answer": f"within {server.http.timeout.total:g} s"}
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        writer.close()


def chunked(body: bytes) -> bytes:
    """Encodes a body in the chunked transfer encoding."""
    pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def _sent(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the server has responded, and closed the connection
        for start in range(0, len(data), PIECE):
            writer.write(data[start : start + PIECE])
            await writer.drain()


async def _received(reader: asyncio.StreamReader) -> bytes:
    """Returns the bytes up to the end of the response or of the connection."""
    data = b""
    with contextlib.suppress(OSError):
        while not _whole(data) and (piece := await reader.read(PIECE)):
            data += piece
    return data


def _whole(data: bytes) -> bool:
    head, found, body = data.partition(b"\r\n\r\n")
    length = _header(head, b"content-length")
    return bool(found) and length.isdigit() and len(body) >= int(length)


def _header(head: bytes, name: bytes) -> bytes:
    values = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    return next((value.strip() for key, _, value in values if key.strip().lower() == name), b"")


def _answer(data: bytes) -> Answer:
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return 0, {"no answer": data[:100].decode(errors="replace"), "closed": True}
    if _header(head, b"transfer-encoding").lower() == b"chunked":
        body = _unchunked(body)
    words = head.split(b" ", 2)
    return int(words[1]), decoded(body.decode(errors="replace"))


def _unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size.split(b";")[0] or b"0", 16)
        if not length:
            break
        found += rest[:length]
        body = rest[length + 2 :]
    return found
