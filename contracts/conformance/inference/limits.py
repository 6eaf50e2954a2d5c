"""Malformed requests, and requests beyond a limit, which servers of version 2 refuse. G6 sends them."""

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
from contracts.schema.routes import EVERYWHERE

SINCE = 2  # first version of the contract with limits
ATTEMPTS = 3
JSON = {"Content-Type": "application/json"}
NO_JSON = {
    "no JSON": b"hello",
    "JSON that is cut off": b'{"model": ',
    "no UTF-8": b'{"model": "\xff"}',
    "half a character": b'{"prompt": "\\ud800"}',
    "JSON nested 100,000 deep": b"[" * 100_000,
    "a number that JSON does not have": b'{"model": NaN}',
    "text after the JSON": b'{"model": "x"} {}',
}
METHODS = ("GET", "POST", "PUT", "DELETE")
NO_ROUTES = [("GET", "/no_such_route"), ("POST", "/no_such_route"), ("GET", "/v1/no_such_route")]
HALF_A_CHARACTER = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'
BODIES = [route for route in EVERYWHERE if route.request]


@dataclass(frozen=True)
class BadHttp:
    """A request that is refused on every route."""

    what: str
    method: str
    path: str
    status: int
    code: str
    body: bytes = field(default=b"", repr=False)
    length: int | None = None  # Content-Length, if it differs from the body's length
    chunked: bool = False  # True if the body is sent in chunks, without a Content-Length


def bad_http(limits: Limits) -> list[BadHttp]:
    """Returns requests that must be refused before a route reads them."""
    found = [
        BadHttp(f"{what} to {route.path}", "POST", route.path, 400, "bad_request", body)
        for route in BODIES
        for what, body in NO_JSON.items()
    ]
    chat = "/v1/chat/completions"
    found += [
        BadHttp(f"half a character in messages to {chat}", "POST", chat, 400, "bad_request", HALF_A_CHARACTER)
    ]
    found += [
        BadHttp(f"{method} {path}", method, path, 405, "method_not_allowed")
        for method, path in _wrong_methods()
    ]
    found += [BadHttp(f"{method} {path}", method, path, 404, "not_found") for method, path in NO_ROUTES]
    return found + _too_large(limits)


def _wrong_methods() -> list[tuple[str, str]]:
    """Returns each mandatory route with each method that it does not have."""
    has: dict[str, set[str]] = {}
    for method, path in (route.sample for route in EVERYWHERE):
        has.setdefault(path, set()).add(method)
    return [(method, path) for path, own in has.items() for method in METHODS if method not in own]


def _too_large(limits: Limits) -> list[BadHttp]:
    """Returns bodies that are one byte too long. All but the last only declare their length."""
    found = []
    for route in BODIES:
        what = f"a length of a byte too many to {route.path}"
        length = getattr(limits, route.body_limit) + 1
        found.append(BadHttp(what, "POST", route.path, 413, "too_large", length=length))
    spaces = b" " * (limits.max_generation_bytes + 1)
    what = "a body of a byte too many, in chunks"
    return [*found, BadHttp(what, "POST", "/v1/completions", 413, "too_large", spaces, chunked=True)]


def beyond_limits(limits: Limits, model: str, join: dict[str, Any]) -> list[BadRequest]:
    """Returns requests with a value beyond a limit. join: a valid request to join."""
    body: dict[str, Any] = {"model": model, "prompt": [1], "max_tokens": 1}
    path = "/v1/completions"
    long = "x" * (limits.max_text_characters + 1)
    changes: list[dict[str, Any]] = [
        {"n": limits.max_n + 1},
        *({"temperature": t} for t in (limits.min_temperature / 2, 1e-38) if limits.min_temperature),
    ]
    found = [BadRequest(path, body | change, 422, "invalid_request") for change in changes]
    # The limit on bytes is checked first, and a long text may exceed that too.
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
    """Sends the requests of `bad_http`, and returns their number. Raises GuaranteeError."""
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
    """Returns the response. Repeats the request if the response is lost.

    A response may be lost if the server closes the connection before it has read the body.
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
