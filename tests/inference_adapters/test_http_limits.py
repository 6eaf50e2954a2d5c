"""What a server does with HTTP that no honest client sends: raw sockets against a real server.

Every answer has its status and the contract's body, a client that stalls is left, and the server serves on.
"""

import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.inference_adapters.limited_server import LIMITS
from tests.inference_adapters.servers import Server, contract, health, serving, wait_ready

OK = json.dumps({"model": "scripted", "prompt": [1, 2], "max_tokens": 2}).encode()


@pytest.fixture(scope="module")
def limited() -> Iterator[Server]:
    with serving("tests.inference_adapters.limited_server") as server:
        wait_ready(server.url)
        yield server


@pytest.fixture(autouse=True)
def serves_on(limited) -> Iterator[None]:
    """After every test, an honest request is answered."""
    yield
    assert answer_to(limited, post("/v1/completions", OK))[0] == 200


def connected(server: Server) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: here", "Content-Type: application/json"]
    length = (
        [] if any("Length" in h or "Transfer" in h for h in headers) else [f"Content-Length: {len(body)}"]
    )
    return "\r\n".join([*lines, *length, *headers, "", ""]).encode() + body


def read_answer(connection: socket.socket) -> tuple[int, dict]:
    """The status and the body of one answer; 0 if the server closes without one."""
    reader = connection.makefile("rb")
    status = reader.readline().split()
    if not status:
        return 0, {}
    headers = dict(line.strip().lower().split(b": ", 1) for line in iter(reader.readline, b"\r\n"))
    assert headers[b"content-type"] == b"application/json"
    return int(status[1]), json.loads(reader.read(int(headers[b"content-length"])))


def answer_to(server: Server, sent: bytes) -> tuple[int, dict]:
    with connected(server) as connection:
        connection.sendall(sent)
        return read_answer(connection)


def code(answer: tuple[int, dict]) -> tuple[int, str]:
    assert set(answer[1]) == {"error"} and set(answer[1]["error"]) == {"code", "message", "type", "param"}
    return answer[0], answer[1]["error"]["code"]


# --- bodies ---------------------------------------------------------------------------------------

NO_JSON = {
    "not JSON": b"hello",
    "cut off": OK[:-1],
    "not UTF-8": b'{"model": "\xff"}',
    "UTF-16": OK.decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + OK,
    "half a surrogate pair": b'{"model": "scripted", "prompt": "\\ud800"}',
    "half a surrogate pair in a message": b'{"messages": [{"role": "user", "content": "\\udc00"}]}',
    "NaN": b'{"model": "scripted", "prompt": [1], "temperature": NaN}',
    "a number of 9000 digits": b'{"model": "scripted", "prompt": [1], "top_k": ' + b"9" * 9000 + b"}",
    "deeply nested": b"[" * 9000,
    "nothing": b"",
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/score", "/request_weight_update"]
)
def test_a_body_that_is_no_json_is_400(limited, path, body):
    assert code(answer_to(limited, post(path, body))) == (400, "bad_request")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-38},
        {"temperature": -0.1},
        {"temperature": 1e300},
        {"top_k": 10**400},
        {"top_k": -2},
        {"n": 129},
        {"n": 10**30},
        {"max_tokens": 2**31},
        {"seed": 2**63},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": [0] * 2000},
        {"stop": ["x"] * 2000},
        {"prompt": [-1] * 3000},
        {"prompt": [2**31]},
        {f"field_{i}": i for i in range(500)},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_impossible_values_are_refused_with_openais_status(limited, fields):
    body = json.loads(OK) | fields
    assert code(answer_to(limited, post("/v1/completions", json.dumps(body).encode()))) == (
        400,
        "invalid_request",
    )


JOIN = {
    "run": "r",
    "epoch": 1,
    "group_name": "g",
    "backend": "gloo",
    "master_address": "127.0.0.1",
    "master_port": 1,
    "rank_offset": 1,
    "world_size": 2,
    "timeout_s": 1,
}
UPDATE = {
    "run": "r",
    "epoch": 1,
    "version": 1,
    "parameters": [{"name": "w", "dtype": "float32", "shape": [1]}],
    "bucket_bytes": 1,
    "timeout_s": 1,
}
BAD_CONTROL = [
    ("/init_process_group", JOIN | {"master_port": 0}),
    ("/init_process_group", JOIN | {"master_port": 65536}),
    ("/init_process_group", JOIN | {"timeout_s": 86400}),
    ("/init_process_group", JOIN | {"timeout_s": 1e-320 * 0}),
    ("/init_process_group", JOIN | {"run": "r\n"}),
    ("/init_process_group", JOIN | {"run": "r" * 1000}),
    ("/init_process_group", JOIN | {"group_name": ""}),
    ("/init_process_group", JOIN | {"epoch": 2**53}),
    ("/init_process_group", JOIN | {"world_size": 10**9}),
    ("/request_weight_update", UPDATE | {"timeout_s": 1e300}),
    ("/request_weight_update", UPDATE | {"version": 2**80}),
    ("/request_weight_update", UPDATE | {"parameters": [{"name": "w", "dtype": "float32", "shape": [-1]}]}),
    (
        "/request_weight_update",
        UPDATE | {"parameters": [{"name": "w", "dtype": "float32", "shape": [2**40] * 2}]},
    ),
    (
        "/request_weight_update",
        UPDATE | {"parameters": [{"name": "w" * 600, "dtype": "float32", "shape": [1]}]},
    ),
    ("/request_weight_update", UPDATE | {"tied": {"a\0": "b"}}),
    ("/abort_weight_update", {"run": "r", "epoch": -1, "version": 0}),
    ("/score", {"sequences": [[1]] * 1025}),
    ("/score", {"sequences": [[1, 2]], "temperature": 1e-45}),
]


@pytest.mark.parametrize(("path", "body"), BAD_CONTROL, ids=lambda value: str(value)[:40])
def test_impossible_values_of_the_control_side_are_422(limited, path, body):
    assert code(answer_to(limited, post(path, json.dumps(body).encode()))) == (422, "invalid_request")


@pytest.mark.parametrize("query", ["wait_s=nan", "wait_s=inf", "wait_s=1e9", "wait_s=-1"])
def test_impossible_waits_are_422(limited, query):
    asked = f"GET /weight_update/1?{query} HTTP/1.1\r\nHost: here\r\n\r\n".encode()
    assert code(answer_to(limited, asked)) == (422, "invalid_request")


def test_of_two_fields_of_one_name_the_last_counts(limited):
    twice = b'{"model": "no such model", ' + OK[1:]
    assert answer_to(limited, post("/v1/completions", twice))[0] == 200


def test_an_error_message_is_short_whatever_the_client_sends(limited):
    long = json.dumps(json.loads(OK) | {"x" * 15_000: 1}).encode()
    answer = answer_to(limited, post("/v1/completions", long))
    assert code(answer) == (400, "unsupported_parameter")
    assert len(answer[1]["error"]["message"]) <= 1000


# --- sizes and times ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", ["Content-Length: 2", "Transfer-Encoding: chunked"])
def test_a_body_is_not_read_where_no_token_is_needed(limited, length):
    body = b"{}" if "Length" in length else b"2\r\n{}\r\n0\r\n\r\n"
    sent = post("/health", body, length).replace(b"POST", b"GET", 1)
    assert code(answer_to(limited, sent)) == (413, "too_large")


@pytest.mark.parametrize(("path", "limit"), [("/v1/completions", 20_000), ("/request_weight_update", 50_000)])
def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(limited, path, limit):
    started = time.monotonic()
    answer = answer_to(limited, post(path, b"{", f"Content-Length: {10**12}"))
    assert code(answer) == (413, "too_large") and time.monotonic() - started < LIMITS.body_timeout_s
    assert str(limit) in answer[1]["error"]["message"]


def test_a_body_in_chunks_is_counted_while_it_is_read(limited):
    chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
    with connected(limited) as connection:
        connection.sendall(post("/v1/completions", b"", "Transfer-Encoding: chunked"))
        for _ in range(21):  # the body has no end
            connection.sendall(chunk)
        assert code(read_answer(connection)) == (413, "too_large")


def test_the_rest_of_a_refused_body_is_not_waited_for(limited):
    with connected(limited) as connection:
        connection.sendall(post("/v1/completions", b"{", "Content-Length: 1000000"))
        assert code(read_answer(connection)) == (413, "too_large")
        assert connection.recv(1) == b""  # the server closes


def test_a_body_that_does_not_come_is_400(limited):
    assert code(answer_to(limited, post("/v1/completions", b"{", "Content-Length: 2"))) == (
        400,
        "bad_request",
    )


@pytest.mark.parametrize("begun", [b"", b"P", b"POST /score HTTP/1.1\r\nHost: h"])
def test_a_header_that_does_not_come_ends_the_connection(limited, begun):
    with connected(limited) as connection:
        connection.sendall(begun)
        status, body = read_answer(connection)
        assert (status, body) == (0, {}) or code((status, body)) == (400, "bad_request")
        assert bool(status) == bool(begun)


def test_a_header_that_comes_byte_by_byte_ends_too(limited):
    started = time.monotonic()
    with connected(limited) as connection:
        try:
            for byte in post("/v1/completions", OK, f"X-Long: {'x' * 2000}"):
                connection.sendall(bytes([byte]))
                time.sleep(0.01)
        except OSError:  # the server has closed
            pass
    assert time.monotonic() - started < 10 * LIMITS.header_timeout_s


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\n" + b"X: " + b"x" * 100_000,
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        post("/score", b"{}", "Content-Length: -1"),
        post("/score", b"{}", "Content-Length: 2", "Content-Length: 3"),
        post("/score", b"zz\r\n{}", "Transfer-Encoding: chunked"),
    ],
    ids=["a huge header", "no HTTP", "TLS", "a negative length", "two lengths", "no chunk"],
)
def test_malformed_http_is_400_with_the_contracts_body(limited, sent):
    assert code(answer_to(limited, sent)) == (400, "bad_request")


def test_a_request_that_expects_to_go_on_is_told_so_only_within_the_limit(limited):
    with connected(limited) as connection:
        connection.sendall(post("/v1/completions", b"", "Content-Length: 999999", "Expect: 100-continue"))
        assert code(read_answer(connection)) == (413, "too_large")


# --- routes, connections --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/health", (405, "method_not_allowed")),
        ("GET", "/score", (405, "method_not_allowed")),
        ("DELETE", "/contract", (405, "method_not_allowed")),
        ("BREW", "/v1/completions", (405, "method_not_allowed")),
        ("GET", "/contract/", (404, "not_found")),
        ("GET", "/%ff%00", (404, "not_found")),
        ("GET", "/weight_update/x", (422, "invalid_request")),
        ("GET", f"/weight_update/{2**70}", (422, "invalid_request")),
        ("GET", "/health?challenge=xyz", (422, "invalid_request")),
    ],
)
def test_wrong_methods_and_routes(limited, method, path, expected):
    assert code(answer_to(limited, f"{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())) == expected


def test_a_web_socket_is_answered_like_any_request(limited):
    upgrade = (
        b"GET /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert code(answer_to(limited, upgrade)) == (405, "method_not_allowed")


def test_one_connection_too_many_is_503(limited):
    held = [connected(limited) for _ in range(LIMITS.max_connections)]
    try:
        for connection in held:
            connection.sendall(b"GET /weight_update/1 HTTP/1.1\r\nHost: h\r\n")  # unfinished
        answer = answer_to(limited, b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert code(answer) == (503, "overloaded")
    finally:
        for connection in held:
            connection.close()
    wait_ready(limited.url)


def test_the_limits_are_stated(limited):
    assert contract(limited.url)["limits"] == LIMITS.model_dump()
    assert health(limited.url) == 200
