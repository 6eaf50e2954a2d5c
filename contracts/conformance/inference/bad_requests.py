"""The requests that every server must refuse, each with the contract's error code. G6 uses them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.http_client import describe_request
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError
from contracts.errors import ErrorCode

BY_CAPABILITY: list[tuple[str, dict[str, Any]]] = [
    ("truncation", {"top_p": 0.5}),
    ("truncation", {"top_k": 1}),
    ("seed", {"seed": 1}),
    ("prescribed_draws", {"draw_keys": ["0" * 64], "logprobs": True}),
    ("commitments", {"commitments": True, "logprobs": True}),
    ("stop_strings", {"stop": ["x"]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}),
    ("template_options", {"chat_template_kwargs": {"enable_thinking": False}}),
    ("stream", {"stream": True}),
    ("arrays", {"arrays": True, "logprobs": True}),
    ("as_completed", {"as_completed": True}),
]
AT_A_TIME = 16
STATUSES = {code.code: code.http_status for code in ErrorCode}
TOO_MANY = frozenset({"invalid_request"})  # more tokens than the limit over all choices
OPENAI_400 = {"invalid_request", "unsupported_parameter", "context_length_exceeded"}  # with OpenAI's status


@dataclass(frozen=True)
class BadRequest:
    """A request that must be refused."""

    path: str
    body: dict[str, Any]
    status: int
    code: str
    named: str = ""  # text that the message must contain
    or_codes: frozenset[str] = frozenset()  # other correct codes

    def is_answered_by(self, status: int, body: dict[str, Any]) -> bool:
        """Returns True if the contract allows the response."""
        error = body.get("error")
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            return False
        code = error.get("code")
        if code not in self.or_codes | {self.code} or self.named not in error["message"]:
            return False
        expected = self.status if code == self.code else STATUSES[code]
        openai = self.path.startswith("/v1/") and code in OPENAI_400 and expected == 422
        return status == expected or (openai and status == 400)


async def check_refused(server: Server, bad: BadRequest) -> None:
    """Sends the request. Raises GuaranteeError unless it is refused with an allowed status and code."""
    status, body = await server.post(bad.path, bad.body)
    if bad.is_answered_by(status, body):
        return
    if bad.path == "/request_weight_update" and status == 202:
        await server.post("/abort_weight_update", {k: bad.body.get(k) for k in ("run", "epoch", "version")})
    names = f", with a message that names {bad.named}" if bad.named else ""
    codes = " or ".join([bad.code, *sorted(bad.or_codes)])
    raise GuaranteeError(
        f"{status} {str(body)[:300]}", f"{bad.status} {codes}{names}", describe_request(bad.path, bad.body)
    )


async def check_all_refused(server: Server, requests: Sequence[BadRequest]) -> None:
    """Checks independent requests, a few at a time. Raises GuaranteeError, which lists all that fail."""
    faults: list[GuaranteeError] = []
    for start in range(0, len(requests), AT_A_TIME):
        few = requests[start : start + AT_A_TIME]
        answers = await asyncio.gather(*(check_refused(server, one) for one in few), return_exceptions=True)
        for error in filter(None, answers):
            if not isinstance(error, GuaranteeError):
                raise error
            faults.append(error)
    if faults:
        raise together(faults)


async def check_each_refused(server: Server, requests: Sequence[BadRequest]) -> None:
    """Checks requests one after the other. Raises GuaranteeError, which lists all that fail.

    A join that is taken changes the server, so nothing is tried after it.
    """
    faults: list[GuaranteeError] = []
    for request in requests:
        try:
            await check_refused(server, request)
        except GuaranteeError as fault:
            faults.append(fault)
            if request.path == "/init_process_group":
                break
    if faults:
        raise together(faults)


def together(faults: Sequence[GuaranteeError]) -> GuaranteeError:
    """Returns one error of several, whose lines are those of each."""
    if len(faults) == 1:
        return faults[0]
    first = faults[0]
    others = "".join(
        f"\n  also {fault.measured}\n    expected: {fault.expected}\n    reproduce: {fault.reproduce}"
        for fault in faults[1:]
    )
    return GuaranteeError(first.measured, first.expected, first.reproduce + others)


def bad_joins(request: dict[str, Any]) -> list[BadRequest]:
    """Returns bad joins, made from a valid `request`."""

    def bad(status: int, code: str, **changes: object) -> BadRequest:
        return BadRequest("/init_process_group", request | changes, status, code)

    return [
        bad(409, "other_run", run="another", takeover=False),
        bad(409, "stale_epoch", epoch=request["epoch"] - 1, group_name="another"),
        bad(409, "stale_epoch", epoch=0),
        bad(422, "unsupported_backend", backend="carrier-pigeon"),
        bad(504, "rendezvous_timeout", timeout_s=0.5),  # no process listens at that address
    ]


async def undeclared_requests(
    server: Server, join: dict[str, Any], update: dict[str, Any]
) -> list[BadRequest]:
    """Returns requests that use features which `/contract` does not declare."""
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
    """Returns bad generation requests, some of which need a capability that the server lacks."""
    contract = await server.contract()
    shared = {"model": contract.model, "max_tokens": 2}
    routes: dict[str, dict[str, Any]] = {"/v1/completions": shared | {"prompt": bench.reference.prompt(5)}}
    if bench.reference.chats:
        messages = [{"role": "user", "content": "1"}]
        routes["/v1/chat/completions"] = routes["/v1/chat/completion"] = shared | {"messages": messages}
    found = []
    for path, body in routes.items():
        found += [
            BadRequest(path, body | {"temperature": -1}, 422, "invalid_request"),
            BadRequest(path, body | {"max_tokens": 0}, 422, "invalid_request"),
            BadRequest(path, body | {"max_tokens": 10**7}, 422, "context_length_exceeded", or_codes=TOO_MANY),
            BadRequest(path, body | {"model": "no-such-model"}, 404, "not_found"),
        ]
        for capability, fields in BY_CAPABILITY:
            if capability in contract.capabilities or (capability == "tools" and "messages" not in body):
                continue
            name = next(iter(fields))
            found.append(BadRequest(path, body | fields, 422, "unsupported_parameter", name))
        if "arrays" in contract.capabilities:
            found.append(BadRequest(path, body | {"arrays": True}, 422, "invalid_request", "arrays"))
        if {"as_completed", "stream"} <= set(contract.capabilities):
            both = body | {"as_completed": True, "stream": True}
            found.append(BadRequest(path, both, 422, "invalid_request", "as_completed"))
        if "as_completed" in contract.capabilities:  # refused with a JSON body, not with a line
            long = body | {"as_completed": True, "max_tokens": 10**7}
            found.append(BadRequest(path, long, 422, "context_length_exceeded", or_codes=TOO_MANY))
    empty = routes["/v1/completions"] | {"prompt": []}
    found.append(BadRequest("/v1/completions", empty, 422, "invalid_request"))
    if "as_completed" in contract.capabilities:
        found.append(BadRequest("/v1/completions", empty | {"as_completed": True}, 422, "invalid_request"))
    return found
