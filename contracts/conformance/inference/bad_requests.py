"""The requests that every server must refuse, each with the code that the contract gives it. G6 uses them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import Server

BY_CAPABILITY: dict[str, dict[str, Any]] = {
    "truncation": {"top_p": 0.5},
    "seed": {"seed": 1},
    "stop_strings": {"stop": ["x"]},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    "stream": {"stream": True},
}


@dataclass(frozen=True)
class BadRequest:
    """A request that must be refused."""

    path: str
    body: dict[str, Any]
    status: int
    code: str
    named: str = ""  # the text that the message must contain


def bad_joins(request: dict[str, Any]) -> list[BadRequest]:
    """Returns requests that must be refused, made from a valid `request` to join."""

    def bad(status: int, code: str, **changes: object) -> BadRequest:
        return BadRequest("/init_process_group", request | changes, status, code)

    return [
        bad(409, "other_run", run="another", takeover=False),
        bad(409, "stale_epoch", epoch=request["epoch"] - 1, group_name="another"),
        bad(409, "stale_epoch", epoch=0),
        bad(422, "unsupported_backend", backend="carrier-pigeon"),
        bad(504, "rendezvous_timeout", timeout_s=0.5),  # no process listens at that address
    ]


def bad_updates(request: dict[str, Any]) -> list[BadRequest]:
    """Returns requests that must be refused, made from a valid `request` for a weight update."""
    parameters = request["parameters"]
    name = max(parameters, key=lambda p: len(p["shape"]))["name"]

    def bad(status: int, code: str, named: str = "", **changes: object) -> BadRequest:
        return BadRequest("/request_weight_update", request | changes, status, code, named)

    def changed(**fields: object) -> list[dict[str, Any]]:
        return [p | fields if p["name"] == name else p for p in parameters]

    def reshaped(change: Callable[[list[int]], list[int]]) -> list[dict[str, Any]]:
        return [p | {"shape": change(list(p["shape"]))} if p["name"] == name else p for p in parameters]

    return [
        bad(409, "other_run", run="another"),
        bad(409, "stale_epoch", epoch=request["epoch"] - 1),
        bad(409, "stale_epoch", epoch=request["epoch"] + 7),
        bad(409, "stale_version", version=0),
        bad(422, "unknown_parameter", "model.nothing", parameters=[
            *parameters, {"name": "model.nothing", "dtype": "float32", "shape": [3]}
        ]),
        bad(422, "missing_parameter", name, parameters=[p for p in parameters if p["name"] != name]),
        bad(422, "shape_mismatch", name, parameters=reshaped(lambda s: [s[0] - 1, *s[1:]])),
        bad(422, "shape_mismatch", name, parameters=reshaped(lambda s: [*s, 1])),
        bad(422, "dtype_mismatch", name, parameters=changed(dtype="complex128")),
        bad(422, "unsupported_kv_cache", kv_cache="burn"),
    ]  # fmt: skip


async def undeclared_requests(
    server: Server, join: dict[str, Any], update: dict[str, Any]
) -> list[BadRequest]:
    """Returns requests that must be refused because `/contract` does not declare what they ask for."""
    contract = await server.contract()
    found = [
        BadRequest("/init_process_group", join | {"backend": backend}, 422, "unsupported_backend")
        for backend in ("gloo", "nccl")
        if backend not in contract.backends
    ]
    if "nccl" in contract.backends:
        other = join | {"backend": "nccl", "nccl_version": "0.0.0"}
        found.append(BadRequest("/init_process_group", other, 422, "nccl_mismatch"))
    found += [
        BadRequest("/request_weight_update", update | {"kv_cache": kv}, 422, "unsupported_kv_cache")
        for kv in ("keep", "recompute")
        if kv not in contract.kv_cache
    ]
    if "staged" not in contract.capabilities:
        staged = update | {"receive": "staged"}
        found.append(BadRequest("/request_weight_update", staged, 422, "unsupported_receive"))
    return found


async def bad_generations(bench: Bench, server: Server) -> list[BadRequest]:
    """Returns generation requests that must be refused, some because the server lacks a capability."""
    contract = await server.contract()
    body = {"model": contract.model, "prompt": bench.reference.prompt(5), "max_tokens": 2}
    path = "/v1/completions"
    chat = {"model": contract.model, "messages": [{"role": "user", "content": "1"}], "max_tokens": 2}
    found = [
        BadRequest(path, body | {"no_such_parameter": 1}, 422, "unsupported_parameter", "no_such_parameter"),
        BadRequest("/v1/chat/completions", chat | {"no_such_parameter": 1}, 422, "unsupported_parameter"),
        BadRequest(path, body | {"temperature": -1}, 422, "invalid_request"),
        BadRequest(path, body | {"max_tokens": 0}, 422, "invalid_request"),
        BadRequest(path, body | {"prompt": []}, 422, "invalid_request"),
        BadRequest(path, body | {"max_tokens": 10**7}, 422, "context_length_exceeded"),
        BadRequest(path, body | {"model": "no-such-model"}, 404, "not_found"),
    ]
    for capability, fields in BY_CAPABILITY.items():
        if capability not in contract.capabilities:
            request = chat if capability == "tools" else body
            where = "/v1/chat/completions" if capability == "tools" else path
            found.append(
                BadRequest(where, request | fields, 422, "unsupported_parameter", next(iter(fields)))
            )
    return found
