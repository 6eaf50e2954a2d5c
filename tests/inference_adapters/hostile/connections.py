"""Connections that break off, and bytes that are barely HTTP."""

from collections.abc import Iterator
from typing import Any

from tests.inference_adapters.hostile.http_bytes import TEXT, Hostile, http


def of_connections(valid: dict[str, dict[str, Any]], token: str | None) -> Iterator[Hostile]:
    """Yields connections that break off, and bytes that are barely HTTP."""
    long = valid[TEXT] | {"max_tokens": 200, "temperature": 0, "n": 1}
    whole = http(TEXT, long, token=token)
    stream = http(TEXT, long | {"stream": True}, token=token)
    yield Hostile("gone before the answer", whole, hang_up="unread")
    yield Hostile("gone in a stream", stream, hang_up="after a byte")
    yield Hostile("gone in the body", whole[:-20], hang_up="unread")
    yield Hostile("gone in the header", whole[:40], hang_up="unread")
    yield Hostile("nothing", b"", hang_up="unread", is_http=False)
    chunked = http(TEXT, b"", token=token, headers="transfer-encoding: chunked\r\n")
    for name, body in {
        "broken": b"5\r\nab",
        "negative": b"-5\r\n",
        "no number": b"zz\r\n{}\r\n0\r\n\r\n",
    }.items():
        yield Hostile(f"{name} chunks", chunked + body, hang_up="unread", is_http=False)
    yield Hostile("a length of -1", http(TEXT, b"{}", headers="content-length: -1\r\n"), is_http=False)
    yield Hostile(
        "two lengths", http(TEXT, b"{}", headers="content-length: 2\r\ncontent-length: 3\r\n"), is_http=False
    )
    yield Hostile(
        "too large", http(TEXT, b"", headers="content-length: 99999999999\r\n", token=token), (413,)
    )
    yield Hostile("bytes", bytes(range(256)) * 4 + b"\r\n\r\n", is_http=False)
    yield Hostile("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", is_http=False)
    yield Hostile("an upgrade", http("/v1/completions", method="GET", token=token, headers=(
        "upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eDEyMw==\r\n")))  # fmt: skip
