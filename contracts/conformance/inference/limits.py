"""The malformed requests, and those beyond a limit, that a server of version 2 refuses. G6 uses them."""

from dataclasses import dataclass, field
from typing import Any

import aiohttp

from contracts.conformance.inference.bad_requests import BadRequest
from contracts.conformance.inference.server import Answer, Server, decoded
from contracts.conformance.verdicts import GuaranteeError
from contracts.inference import ContractInfo
from contracts.limits import LONGEST_S, Limits

SINCE = 2  # the version of the contract that states limits
JSON = {"Content-Type": "application/json"}
NO_JSON = {
    "no JSON": b"hello",
    "JSON that is cut off": b'{"model": ',
    "no UTF-8": b'{"model": "\xff"}',
    "half a surrogate pair": b'{"prompt": "\\ud800"}',
    "JSON nested 100,000 deep": b"[" * 100_000,
}
WRONG_METHODS = [("POST", "/health"), ("DELETE", "/contract"), ("GET", "/v1/completions")]


@dataclass(frozen=True)
class BadHttp:
    """A request that is refused whatever route it asks for."""

    what: str
    method: str
    path: str
    status: int
    code: str
    body: bytes = field(default=b"", repr=False)


def bad_http(limits: Limits) -> list[BadHttp]:
    """Returns requests that are refused before any route reads them."""
    path = "/v1/completions"
    found = [BadHttp(what, "POST", path, 400, "bad_request", body) for what, body in NO_JSON.items()]
    found += [
        BadHttp(f"{method} {path}", method, path, 405, "method_not_allowed") for method, path in WRONG_METHODS
    ]
    large = b" " * (limits.max_generation_bytes + 1)
    found.append(BadHttp("a body of a byte too many", "POST", path, 413, "too_large", large))
    return found


def beyond_limits(limits: Limits, model: str, join: dict[str, Any]) -> list[BadRequest]:
    """Returns requests with a value beyond a limit. `join` is a valid request to join."""
    body = {"model": model, "prompt": [1], "max_tokens": 1}
    path = "/v1/completions"
    long = "x" * (limits.max_text_characters + 1)
    changes: list[dict[str, Any]] = [
        {"temperature": limits.min_temperature / 2},
        {"temperature": 1e-38},
        {"n": limits.max_n + 1},
        {"prompt": long},
    ]
    found = [BadRequest(path, body | change, 422, "invalid_request") for change in changes]
    for change in ({"master_port": 65536}, {"timeout_s": LONGEST_S}, {"epoch": 2**60}, {"run": "a\nb"}):
        found.append(BadRequest("/init_process_group", join | change, 422, "invalid_request"))
    return found


async def check_bad_http(server: Server, contract: ContractInfo) -> int:
    """Sends each request of `bad_http`. Returns their number; raises GuaranteeError for a wrong answer."""
    requests = bad_http(contract.limits or Limits())
    for bad in requests:
        status, answer = await _ask(server, bad)
        if (status, answer.get("error", {}).get("code")) != (bad.status, bad.code):
            raise GuaranteeError(
                f"{status} {str(answer)[:300]} to {bad.what}",
                f"{bad.status} {bad.code}, in the contract's form",
                f"{bad.method} {server.url}{bad.path} {bad.body[:60]!r}",
            )
    return len(requests)


async def _ask(server: Server, bad: BadHttp) -> Answer:
    headers = server.headers | JSON
    asked = server.http.request(bad.method, server.url + bad.path, data=bad.body or None, headers=headers)
    try:
        async with asked as answer:
            return answer.status, decoded(await answer.text())
    except aiohttp.ClientError as error:
        return 0, {"no answer": repr(error)}
