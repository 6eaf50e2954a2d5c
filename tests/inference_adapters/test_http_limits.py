"""What a server does with HTTP that no honest client sends: raw connections to a server in this process.

The clock is moved, so a client that stalls is left at once. The kit and `hostile` send the rest.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from contracts.limits import Limits
from inference_adapters.app import create_app
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import server_of
from inference_adapters.weight_updates import WeightUpdates
from tests.limits import HANG_S
from tests.moved_loop import let_pass, on_moved_loop

OK = json.dumps({"model": "scripted", "prompt": [1, 2], "max_tokens": 2}).encode()
LIMITS = Limits(
    header_timeout_s=HANG_S,
    body_timeout_s=HANG_S,
    max_header_bytes=4096,
    max_body_bytes=50_000,
    max_generation_bytes=20_000,
    max_connections=12,
)


class Client:
    """Sends bytes to a server that runs in the same event loop."""

    def __init__(self, port: int, connections: set[H11Protocol]):
        self._port = port
        self._connections = connections

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        yield reader, writer
        writer.close()

    async def answer_to(self, sent: bytes) -> tuple[int, dict]:
        async with self.connected() as (reader, writer):
            writer.write(sent)
            return await read_answer(reader)

    async def has(self, condition: Callable[[H11Protocol], bool], count: int = 1) -> None:
        """Waits until so many connections are as the condition says."""
        while sum(map(condition, self._connections)) < count:
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[Client]:
    """Yields a client, and checks that the server answers a valid request in the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = server_of(create_app(WeightUpdates(ScriptedEngine(token_delay_s=0.0), limits=LIMITS)), LIMITS)
    serving = asyncio.create_task(server.serve([listener]))
    client = Client(listener.getsockname()[1], server.server_state.connections)
    while (await client.answer_to(get("/health")))[0] != 200:
        await asyncio.sleep(0.001)
    yield client
    assert (await client.answer_to(post("/v1/completions", OK)))[0] == 200
    server.should_exit = True
    await serving


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: here", "Content-Type: application/json", *headers]
    if not any("Length" in header or "Transfer" in header for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict]:
    """Returns the status and the body of one response; 0 if the server closes without one."""
    status = (await reader.readline()).split()
    if not status:
        return 0, {}
    headers = {}
    while (line := await reader.readline()) != b"\r\n":
        name, _, value = line.strip().lower().partition(b": ")
        headers[name] = value
    assert headers[b"content-type"] == b"application/json"
    return int(status[1]), json.loads(await reader.readexactly(int(headers[b"content-length"])))


def code(answer: tuple[int, dict]) -> tuple[int, str]:
    assert set(answer[1]) == {"error"} and set(answer[1]["error"]) == {"code", "message", "type", "param"}
    return answer[0], answer[1]["error"]["code"]


BAD_REQUEST = (400, "bad_request")
TOO_LARGE = (413, "too_large")
UPGRADE = b"GET /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
REFUSED = {
    "a body where no token is needed": (post("/health", b"{}").replace(b"POST", b"GET", 1), TOO_LARGE),
    "such a body in chunks": (
        post("/health", b"2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked").replace(b"POST", b"GET", 1),
        TOO_LARGE,
    ),
    "a body of too many stated bytes": (
        post("/v1/completions", b"", "Content-Length: 999999", "Expect: 100-continue"),
        TOO_LARGE,
    ),
    "a huge header": (b"GET /health HTTP/1.1\r\n" + b"X: " + b"x" * 100_000, BAD_REQUEST),
    "no HTTP": (b"hello\r\n\r\n", BAD_REQUEST),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), BAD_REQUEST),
    "a negative length": (post("/score", b"{}", "Content-Length: -1"), BAD_REQUEST),
    "two lengths": (post("/score", b"{}", "Content-Length: 2", "Content-Length: 3"), BAD_REQUEST),
    "no chunk": (post("/score", b"zz\r\n{}", "Transfer-Encoding: chunked"), BAD_REQUEST),
    "UTF-16": (post("/v1/completions", OK.decode().encode("utf-16")), BAD_REQUEST),
    "a byte order mark": (post("/v1/completions", b"\xef\xbb\xbf" + OK), BAD_REQUEST),
    "a number of 9000 digits": (post("/v1/completions", b'{"top_k": ' + b"9" * 9000 + b"}"), BAD_REQUEST),
    "no method": (get("/v1/completions", "BREW"), (405, "method_not_allowed")),
    "a slash more": (get("/contract/"), (404, "not_found")),
    "no path": (get("/%ff%00"), (404, "not_found")),
    "a huge version": (get(f"/weight_update/{2**70}"), (422, "invalid_request")),
    "an endless wait": (get("/weight_update/1?wait_s=inf"), (422, "invalid_request")),
    "a web socket": (UPGRADE + b"Sec-WebSocket-Version: 13\r\n\r\n", (405, "method_not_allowed")),
}


@on_moved_loop
async def test_what_no_honest_client_sends_has_the_contracts_error():
    async with served() as client:
        for what, (sent, expected) in REFUSED.items():
            assert code(await client.answer_to(sent)) == expected, what
        for path, limit in (("/v1/completions", 20_000), ("/request_weight_update", 50_000)):
            answer = await client.answer_to(post(path, b"{", f"Content-Length: {10**12}"))
            assert code(answer) == TOO_LARGE and str(limit) in answer[1]["error"]["message"]
        long = json.dumps(json.loads(OK) | {"x" * 15_000: 1}).encode()
        answer = await client.answer_to(post("/v1/completions", long))
        assert code(answer) == (400, "unsupported_parameter") and len(answer[1]["error"]["message"]) <= 1000
        twice = b'{"model": "no such model", ' + OK[1:]  # of two fields of one name the last counts
        assert (await client.answer_to(post("/v1/completions", twice)))[0] == 200
        assert (await client.answer_to(get("/contract")))[1]["limits"] == LIMITS.model_dump()


@on_moved_loop
async def test_a_body_in_chunks_is_counted_and_the_rest_of_a_refused_one_is_not_waited_for():
    async with served() as client:
        async with client.connected() as (reader, writer):
            writer.write(post("/v1/completions", b"", "Transfer-Encoding: chunked"))
            writer.write(21 * (b"3e8\r\n" + b" " * 1000 + b"\r\n"))  # the body has no end
            assert code(await read_answer(reader)) == TOO_LARGE
        async with client.connected() as (reader, writer):
            writer.write(post("/v1/completions", b"{", "Content-Length: 1000000"))
            assert code(await read_answer(reader)) == TOO_LARGE
            let_pass(HANG_S)
            assert await reader.read(1) == b""  # the server closes


@on_moved_loop
async def test_what_does_not_come_in_time_ends_the_connection():
    async with served() as client:
        for begun in (b"", b"P", b"POST /score HTTP/1.1\r\nHost: h"):
            async with client.connected() as (reader, writer):
                writer.write(begun)
                await client.has(lambda made, begun=begun: made.conn.trailing_data[0] == begun)
                let_pass(HANG_S)
                answer = await read_answer(reader)
                assert code(answer) == BAD_REQUEST if begun else answer == (0, {})
        async with client.connected() as (reader, writer):
            writer.write(post("/v1/completions", b"{", "Content-Length: 2"))
            answer = asyncio.create_task(read_answer(reader))
            await client.has(lambda made: made.conn.their_state is h11.SEND_BODY)
            while not answer.done():
                await asyncio.sleep(0.01)
                let_pass(HANG_S)
            assert code(await answer) == BAD_REQUEST


@on_moved_loop
async def test_a_header_that_comes_byte_by_byte_ends_too():
    async with served() as client, client.connected() as (reader, writer):
        sent = 0
        for byte in post("/v1/completions", OK, f"X-Long: {'x' * 2000}"):
            writer.write(bytes([byte]))
            sent += 1
            let_pass(HANG_S / 100)
            await asyncio.sleep(0)
            if reader.at_eof() or writer.transport.is_closing():
                break
        assert sent < 2000


@on_moved_loop
async def test_one_connection_too_many_is_503():
    async with served() as client, contextlib.AsyncExitStack() as held:
        for _ in range(LIMITS.max_connections):
            _, writer = await held.enter_async_context(client.connected())
            writer.write(b"GET /weight_update/1 HTTP/1.1\r\nHost: h\r\n")  # unfinished
        await client.has(lambda made: made.conn.trailing_data[0] != b"", LIMITS.max_connections)
        assert code(await client.answer_to(get("/health"))) == (503, "overloaded")
        await held.aclose()
        while (await client.answer_to(get("/health")))[0] != 200:
            await asyncio.sleep(0.001)
