"""Requests as raw bytes over plain sockets, and their responses."""

import json
import socket

from tests.inference_adapters.servers import Server

OK = json.dumps({"model": "scripted", "prompt": [1, 2], "max_tokens": 2}).encode()


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
    """Returns the status and the body of one response; 0 if the server closes without one."""
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
