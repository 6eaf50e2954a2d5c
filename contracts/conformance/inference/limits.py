"""Malformed requests, and requests beyond a limit, that a server of version 2 refuses. G6 uses them."""

import json
from dataclasses import dataclass, field
from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest
from contracts.conformance.inference.http_client import Answer
from contracts.conformance.inference.raw_http import chunked, exchanged
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError
from contracts.inference import ContractInfo
from contracts.limits import LONGEST_S, Limits

SINCE = 2  # the version of the contract that states limits
ATTEMPTS = 3
JSON = {"Content-Type": "application/json"}
NO_JSON = {
    "no JSON": b"hello",
    "JSON that is cut off": b'{"model": ',
    "no UTF-8": b'{"model": "\xff"}',
    "half a surrogate pair": b'{"prompt": "\\ud800"}',
    "JSON nested 100,000 deep": b"[" * 100_000,
    "a number that JSON does not have": b'{"model": NaN}',
    "text after the JSON": b'{"model": "x"} {}',
}
WRONG_METHODS = [
    ("POST", "/health"),
    ("DELETE", "/contract"),
    ("GET", "/init_process_group"),
    ("PUT", "/request_weight_update"),
    ("POST", "/weight_update/1"),
    ("DELETE", "/abort_weight_update"),
    ("GET", "/v1/completions"),
    ("PUT", "/v1/chat/completions"),
    ("POST", "/v1/models"),
]
NO_ROUTES = [("GET", "/no_such_route"), ("POST", "/no_such_route"), ("GET", "/v1/no_such_route")]
HALF_A_CHARACTER = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
BODIES = ["/v1/completions", "/init_process_group", "/request_weight_update", "/abort_weight_update"]


@dataclass(frozen=True)
class BadHttp:
    """A request that is refused on every route."""

    what: str
    method: str
    path: str
    status: int
    code: str
    body: bytes = field(default=b"", repr=False)
    length: int | None = None  # the Content-Length, if it differs from the body's
    chunked: bool = False  # whether the body is sent in chunks, without a Content-Length


def bad_http(limits: Limits) -> list[BadHttp]:
    """Returns requests that are refused before any route reads them."""
    found = [
        BadHttp(f"{what} to {path}", "POST", path, 400, "bad_request", body)
        for path in BODIES
        for what, body in NO_JSON.items()
    ]
    chat = "/v1/chat/completions"
    found += [
        BadHttp(f"half a character in messages to {chat}", "POST", chat, 400, "bad_request", HALF_A_CHARACTER)
    ]
    found += [
        BadHttp(f"{method} {path}", method, path, 405, "method_not_allowed") for method, path in WRONG_METHODS
    ]
    found += [BadHttp(f"{method} {path}", method, path, 404, "not_found") for method, path in NO_ROUTES]
    return found + _too_large(limits)


def _too_large(limits: Limits) -> list[BadHttp]:
    """Returns bodies one byte too long; a declared length is refused before the body is sent."""
    by_path = {
        "/v1/completions": limits.max_generation_bytes,
        "/v1/chat/completions": limits.max_generation_bytes,
        "/request_weight_update": limits.max_body_bytes,
    }
    found = [
        BadHttp(f"a length of a byte too many to {path}", "POST", path, 413, "too_large", length=most + 1)
        for path, most in by_path.items()
    ]
    spaces = b" " * (limits.max_generation_bytes + 1)
    what = "a body of a byte too many, in chunks"
    return [*found, BadHttp(what, "POST", "/v1/completions", 413, "too_large", spaces, chunked=True)]


def beyond_limits(limits: Limits, model: str, join: dict[str, Any]) -> list[BadRequest]:
    """Returns requests with a value beyond a limit. `join` is a valid request to join."""
    body: dict[str, Any] = {"model": model, "prompt": [1], "max_tokens": 1}
    path = "/v1/completions"
    long = "x" * (limits.max_text_characters + 1)
    changes: list[dict[str, Any]] = [
        {"n": limits.max_n + 1},
        *({"temperature": t} for t in (limits.min_temperature / 2, 1e-38) if limits.min_temperature),
    ]
    found = [BadRequest(path, body | change, 422, "invalid_request") for change in changes]
    # The limit on bytes is checked first: a long text may exceed it too.
    body["prompt"] = long
    fits = len(json.dumps(body)) <= limits.max_generation_bytes
    answer = (422, "invalid_request") if fits else (413, "too_large")
    found.append(BadRequest(path, body, *answer))
    joins: list[dict[str, Any]] = [
        {"master_port": 65536},
        {"timeout_s": LONGEST_S},
        {"epoch": 2**60},
        {"run": "a\nb"},
        {"rank_offset": join["world_size"]},  # beyond the last rank of the group
    ]
    for change in joins:
        found.append(BadRequest("/init_process_group", join | change, 422, "invalid_request"))
    return found


async def check_bad_http(server: Server, contract: ContractInfo) -> int:
    """Sends the requests of `bad_http`, returns their number. Raises GuaranteeError for a wrong response."""
    requests = bad_http(contract.limits or Limits())
    for bad in requests:
        status, answer = await _ask(server, bad)
        error = answer.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        if (status, code) != (bad.status, bad.code):
            raise GuaranteeError(
                f"{status} {str(answer)[:300]} to {bad.what}",
                f"{bad.status} {bad.code}, in the contract's form",
                f"{bad.method} {server.url}{bad.path} {bad.body[:60]!r}",
            )
    return len(requests)


async def _ask(server: Server, bad: BadHttp) -> Answer:
    """Returns the response.

    A server may close the connection before it has read the body, and the response may be lost: the request
    is then repeated.
    """
    if bad.chunked:
        headers = {"Transfer-Encoding": "chunked"}
        body = chunked(bad.body)
    else:
        headers = {"Content-Length": str(len(bad.body) if bad.length is None else bad.length)}
        body = bad.body
    for _ in range(ATTEMPTS):
        answer = await exchanged(server, bad.method, bad.path, headers | JSON, body)
        if answer[0] or not answer[1].get("closed"):
            return answer
    if bad.chunked:
        return bad.status, {"error": {"code": bad.code}}  # refused, but the response was lost
    return answer
