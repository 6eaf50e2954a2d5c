"""Requests with one wrong field, for each route and each error that the wire models define. G6 sends them."""

from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.limits import SINCE
from contracts.conformance.inference.wrong_fields import WrongField, wrong_fields
from contracts.inference import (
    AbortWeightUpdateRequest,
    ChatCompletionRequest,
    CompletionRequest,
    ContractInfo,
    InitProcessGroupRequest,
    LeaveProcessGroupRequest,
    ScoreRequest,
    WeightUpdateRequest,
)
from contracts.wire import Request

# An invalid value may also be refused with the code of a feature that the server lacks.
OR_CODES = {
    "backend": {"unsupported_backend"},
    "nccl_version": {"nccl_mismatch"},
    "kv_cache": {"unsupported_kv_cache"},
    "receive": {"unsupported_receive"},
    "parameters": {"missing_parameter"},
    "parameters.name": {"unknown_parameter", "missing_parameter"},
    "parameters.shape": {"shape_mismatch"},
    "parameters.dtype": {"dtype_mismatch"},
    "tied": {"unknown_parameter", "missing_parameter"},
    "model": {"not_found"},
    "sequences": {"context_length_exceeded"},
    "kind": {"unsupported_channel"},
    "sources": {"source_refused"},
    "public_keys": {"bad_key"},
    "public_keys.ed25519": {"bad_key"},
    "proof": {"not_shared"},
}
LENGTHS = {"prompt", "messages", "max_tokens", "max_completion_tokens"}
NULLS = {"model", "messages", "prompt"}  # in other generation fields, null means the default


def bad_fields(
    bench: Bench, contract: ContractInfo, join: dict[str, Any], update: dict[str, Any]
) -> list[BadRequest]:
    """Returns bad requests to all routes. join, update: valid requests."""
    abort = {"run": update["run"], "epoch": update["epoch"], "version": update["version"] + 1000}
    found = control_fields(bench, contract, "/init_process_group", InitProcessGroupRequest, join)
    found += control_fields(bench, contract, "/request_weight_update", WeightUpdateRequest, update)
    found += control_fields(bench, contract, "/abort_weight_update", AbortWeightUpdateRequest, abort)
    if "leave_group" in contract.capabilities:
        leave = {"run": update["run"], "epoch": update["epoch"] + 1000}
        found += control_fields(bench, contract, "/leave_process_group", LeaveProcessGroupRequest, leave)
    if "score" in contract.capabilities:
        sequences = {"sequences": [bench.reference.prompt(4)], "temperature": 1.0}
        found += control_fields(bench, contract, "/score", ScoreRequest, sequences)
        if contract.contract >= SINCE:
            empty = sequences | {"sequences": [bench.reference.prompt(4), []]}
            found.append(BadRequest("/score", empty, 422, "invalid_request"))
    shared = {"model": contract.model, "max_tokens": 2, "stop_token_ids": [bench.reference.ordinary[-1]]}
    text = shared | {"prompt": bench.reference.prompt(5)}
    found += _generation(bench, contract, "/v1/completions", CompletionRequest, text)
    if bench.reference.chats:
        chat = shared | {"messages": [{"role": "user", "content": "1"}]}
        found += _generation(bench, contract, "/v1/chat/completions", ChatCompletionRequest, chat)
    return found


def _wrong(
    bench: Bench, contract: ContractInfo, model: type[Request], valid: dict[str, Any]
) -> list[WrongField]:
    wrong = wrong_fields(model, valid, bench.settings.thorough)
    return [one for one in wrong if contract.contract >= SINCE or one.how != "bound"]


def control_fields(
    bench: Bench, contract: ContractInfo, path: str, model: type[Request], valid: dict[str, Any]
) -> list[BadRequest]:
    """Returns bad requests to a control route, made from a `valid` one."""
    return [
        BadRequest(path, one.body, 422, "invalid_request", or_codes=_or_codes(one))
        for one in _wrong(bench, contract, model, valid)
    ]


def _generation(
    bench: Bench, contract: ContractInfo, path: str, model: type[Request], valid: dict[str, Any]
) -> list[BadRequest]:
    """Returns bad generation requests, each also as a stream if the server offers streams."""
    found = []
    for one in _wrong(bench, contract, model, valid):
        if one.how == "null" and one.field not in NULLS:
            continue
        code = "unsupported_parameter" if one.how == "unknown" else "invalid_request"
        others = _or_codes(one) | {"unsupported_parameter"}
        if one.field in LENGTHS:
            others |= {"context_length_exceeded"}
        or_codes = frozenset() if one.how == "unknown" else others - {code}
        bodies = [one.body]
        if "stream" in contract.capabilities and one.field != "stream":
            bodies.append(one.body | {"stream": True})
        named = one.field if one.how == "unknown" and "." not in one.field else ""
        found += [BadRequest(path, body, 422, code, named, or_codes) for body in bodies]
    return found


def _or_codes(one: WrongField) -> frozenset[str]:
    return frozenset(OR_CODES.get(one.field, set()) if one.how != "unknown" else set())
