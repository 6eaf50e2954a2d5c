"""What a server does with HTTP that no honest client sends: raw sockets against a real server.

A client that stalls is left, and the server serves on.
"""

import time

import pytest

from tests.inference_adapters.limited_server import LIMITS
from tests.inference_adapters.raw_requests import OK, answer_to, code, connected, post, read_answer
from tests.inference_adapters.servers import contract, health, wait_ready

pytestmark = pytest.mark.usefixtures("serves_on")


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
