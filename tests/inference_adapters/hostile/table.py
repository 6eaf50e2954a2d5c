"""The table of hand-written requests. Every engine must respond to each with one of its statuses."""

from collections.abc import Iterator
from typing import Any

from tests.inference_adapters.hostile.connections import of_connections
from tests.inference_adapters.hostile.http_bytes import (
    ABORT,
    BIG,
    CHAT,
    JOIN,
    REFUSED,
    SCORE,
    SURROGATE,
    TEXT,
    UPDATE,
    Hostile,
    Raw,
    http,
    to_json,
    valid_bodies,
)
from tests.inference_adapters.hostile.paths import BODIES, ELSEWHERE, OF_VLLM, PATHS
from tests.inference_adapters.hostile.values import MESSAGES, PROMPTS, SAMPLING, TOOLS


def table(model: str, token: str | None) -> list[Hostile]:
    """Returns the hand-written requests. Every engine must respond to each with one of its statuses."""
    valid = valid_bodies(model)
    return [
        *_of_fields(valid, token),
        *_of_control(valid, token),
        *_of_bodies(token),
        *_of_http(valid, token),
        *of_connections(valid, token),
    ]


def _of_fields(valid: dict[str, dict[str, Any]], token: str | None) -> Iterator[Hostile]:
    for name, (changes, statuses) in SAMPLING.items():
        for path in (CHAT, TEXT):
            yield Hostile(f"{path}: {name}", http(path, valid[path] | changes, token=token), statuses)
    for name, (prompt, statuses) in PROMPTS.items():
        yield Hostile(f"prompt: {name}", http(TEXT, valid[TEXT] | {"prompt": prompt}, token=token), statuses)
    for name, (messages, statuses) in MESSAGES.items():
        body = valid[CHAT] | {"messages": messages}
        yield Hostile(f"messages: {name}", http(CHAT, body, token=token), statuses)
    for name, (tools, statuses) in TOOLS.items():
        yield Hostile(f"tools: {name}", http(CHAT, valid[CHAT] | {"tools": tools}, token=token), statuses)
    for sequences in ([[]], [[-1]], [[2**30]], [[BIG]], [["a"]], [[5] * 100_000], [[5]] * 5000, [], None, 5):
        body = {"sequences": sequences}
        yield Hostile(f"{SCORE}: {str(sequences)[:40]}", http(SCORE, body, token=token), REFUSED)
    for temperature in (0, -1, 1e-45, Raw("NaN"), Raw("1e400")):
        body = {"sequences": [[5, 6]], "temperature": temperature}
        yield Hostile(f"{SCORE}: temperature {temperature}", http(SCORE, body, token=token), REFUSED)


def _of_control(valid: dict[str, dict[str, Any]], token: str | None) -> Iterator[Hostile]:
    for path, changes in [
        (JOIN, {"master_port": 0}),
        (JOIN, {"master_port": 99999}),
        (JOIN, {"master_port": BIG}),
        (JOIN, {"timeout_s": 1e9}),
        (JOIN, {"timeout_s": Raw("NaN")}),
        (JOIN, {"world_size": BIG}),
        (JOIN, {"rank_offset": 0}),
        (JOIN, {"rank_offset": 5}),
        (JOIN, {"master_address": SURROGATE}),
        (JOIN, {"master_address": "\0"}),
        (JOIN, {"group_name": "x" * 1_000_000}),
        (JOIN, {"backend": "carrier pigeon"}),
        (JOIN, {"epoch": -1}),
        (UPDATE, {"parameters": []}),
        (UPDATE, {"parameters": [{"name": "x", "dtype": "float32", "shape": [BIG]}]}),
        (UPDATE, {"parameters": [{"name": "x", "dtype": "float32", "shape": [-1]}]}),
        (UPDATE, {"parameters": [{"name": SURROGATE, "dtype": "float32", "shape": []}]}),
        (UPDATE, {"parameters": [{"name": "x", "dtype": "complex512", "shape": []}] * 50_000}),
        (UPDATE, {"bucket_bytes": BIG}),
        (UPDATE, {"version": BIG}),
        (UPDATE, {"timeout_s": Raw("1e400")}),
        (UPDATE, {"tied": {SURROGATE: "x"}}),
        (UPDATE, {}),
        (ABORT, {"version": BIG}),
        (ABORT, {"run": SURROGATE}),
        (ABORT, {}),
    ]:
        body = http(path, valid[path] | changes, token=token)
        yield Hostile(f"{path}: {to_json(changes)[:60]}", body, REFUSED)


def _of_bodies(token: str | None) -> Iterator[Hostile]:
    for path in (CHAT, TEXT, SCORE, JOIN, UPDATE, ABORT):
        for name, body in BODIES.items():
            yield Hostile(f"{path}: {name}", http(path, body, token=token), REFUSED)


def _of_http(valid: dict[str, dict[str, Any]], token: str | None) -> Iterator[Hostile]:
    for path, statuses in PATHS.items():
        yield Hostile(f"GET {path[:60]}", http(path, method="GET", token=token), statuses)
    for path in ELSEWHERE:
        for body in (b"", b"{", to_json(valid[TEXT]).encode(), b'{"prompt": 7, "input": [[]]}'):
            yield Hostile(f"POST {path}", http(path, body, token=token))
    model = valid[TEXT]["model"]
    for path, bodies in OF_VLLM.items():
        for body in bodies:
            yield Hostile(
                f"POST {path}: {to_json(body)[:80]}", http(path, {"model": model} | body, token=token)
            )
    for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        for path in (CHAT, UPDATE):
            yield Hostile(f"{method} {path}", http(path, method=method, token=token), REFUSED)
    yield Hostile("POST /health", http("/health", token=token), (405,))
    body = to_json(valid[TEXT]).encode()
    for content_type in ("text/plain", "multipart/form-data", "application/xml", "a" * 1000, ""):
        yield Hostile(f"as {content_type[:30]!r}", http(TEXT, body, token=token, content_type=content_type))
    twice = body[:-1] + b',"n":1,"n":129,"n":2}'
    yield Hostile("a key three times", http(TEXT, twice, token=token))
    yield Hostile("many headers", http(TEXT, body, token=token, headers="a: b\r\n" * 200))
    yield Hostile("a long header", http(TEXT, body, token=token, headers=f"a: {'b' * 40_000}\r\n"))
    yield Hostile(
        "a wrong token", http(TEXT, body, token="wrong" if token else None), (401,) if token else None
    )
    if token:
        yield Hostile("no token", http(TEXT, body), (401,))
        yield Hostile("a token of bytes", http(TEXT, body, headers="authorization: Bearer \xff\r\n"), (401,))
