"""A server that responds to completion requests from memory, so that only its client is measured.

`benchmarks.actor` uses it. The responses are built once, by the code of the embedded servers.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

from starlette.responses import Response

from contracts.inference import TokenDelta
from inference_adapters.completions import Chat, Completion, Form
from inference_adapters.generation_routes import response_of
from inference_adapters.logprob_forms import TokenTexts

PROMPT = list(range(100, 164))
TOKENS_A_DELTA = 8
VERSION = 3
LOGPROB = -0.1875 / 0.7  # a value with all its digits


def deltas(tokens: int) -> list[TokenDelta]:
    """Returns a completion in the deltas of an engine."""
    starts = range(0, tokens, TOKENS_A_DELTA)
    return [_delta(start, min(start + TOKENS_A_DELTA, tokens), tokens) for start in starts]


def _delta(start: int, end: int, tokens: int) -> TokenDelta:
    ids = [1000 + 37 * position % 30_000 for position in range(start, end)]
    logprobs = [LOGPROB * (1 + position % 13) for position in range(start, end)]
    return TokenDelta(ids, logprobs, [VERSION] * len(ids), "length" if end == tokens else None)


def response(parts: list[TokenDelta], arrays: bool) -> Response:
    """Returns the response that a server builds from the deltas of one completion."""
    form = Form(Chat, "canned", logprobs="arrays" if arrays else "content")
    completion = Completion(form, [PROMPT], 1, TEXTS)
    for part in parts:
        completion.append_delta(0, part)
    return response_of(completion)


def decode(token_ids: list[int]) -> str:
    """Returns a text of four characters per id, which is cheap to make."""
    return "".join(f" {token_id % 1000:03}" for token_id in token_ids)


TEXTS = TokenTexts(decode)


@contextlib.contextmanager
def canned(tokens: int) -> Iterator[str]:
    """Yields the URL of a process that responds to every request with `tokens` tokens."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(tokens, there), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def _serve(tokens: int, parent: Connection) -> None:
    parts = deltas(tokens)
    answers = _Answers(
        contract=_http(b'{"capabilities": ["arrays"]}'),
        lists=_http(bytes(response(parts, arrays=False).body)),
        arrays=_http(bytes(response(parts, arrays=True).body)),
    )

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: _Canned(answers), "127.0.0.1", 0)
        parent.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await server.serve_forever()

    asyncio.run(serve())


class _Answers(NamedTuple):
    """The HTTP responses of the server."""

    contract: bytes
    lists: bytes
    arrays: bytes

    def to(self, request: bytes) -> bytes:
        if request.startswith(b"GET "):
            return self.contract
        return self.arrays if b'"arrays"' in request else self.lists


class _Canned(asyncio.Protocol):
    """Responds to each request of a connection once it is complete."""

    def __init__(self, answers: _Answers):
        self._answers = answers
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (length := _request_length(self._buffer)) is not None and len(self._buffer) >= length:
            self._transport.write(self._answers.to(self._buffer[:length]))
            self._buffer = self._buffer[length:]


def _http(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _request_length(buffer: bytes) -> int | None:
    """Returns the length of the first request in bytes; None while its header is incomplete."""
    head, separator, _ = buffer.partition(b"\r\n\r\n")
    if not separator:
        return None
    lines = [line.lower() for line in head.split(b"\r\n")]
    body = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
    return len(head) + len(separator) + body
