"""Validates the request of a weight update against the engine's declarations, before any collective.

`weight_updates` calls it. It has no side effects.
"""

from collections.abc import Mapping

from contracts.errors import ContractError, ErrorCode
from contracts.inference import EngineInfo, InferenceEngine, Parameter, WeightUpdateRequest


def check_manifest(request: WeightUpdateRequest, engine: InferenceEngine) -> None:
    """Raises ContractError, which names the parameter, unless the engine can receive the update."""
    info = engine.info()
    check_kv_cache(request.kv_cache, info)
    if request.receive == "staged" and "staged" not in info.capabilities:
        raise ContractError(ErrorCode.UNSUPPORTED_RECEIVE, "receive staged: this server offers only paused")
    shapes = engine.parameter_shapes()
    tied = engine.tied_parameters()
    for parameter in request.parameters:
        _check_parameter(parameter, shapes, tied, info.accepts_dtypes)
    _check_complete([p.name for p in request.parameters], shapes)
    _check_tied(request.tied, tied)


def check_kv_cache(kv_cache: str, info: EngineInfo) -> None:
    """Raises ContractError unless the engine supports the mode."""
    if kv_cache not in info.kv_cache:
        why = f"kv_cache {kv_cache}: this server offers {info.kv_cache}"
        raise ContractError(ErrorCode.UNSUPPORTED_KV_CACHE, why)


def _check_parameter(
    parameter: Parameter, shapes: Mapping[str, tuple[int, ...]], tied: Mapping[str, str], dtypes: list[str]
) -> None:
    name = parameter.name
    if name in tied:
        raise ContractError(ErrorCode.UNKNOWN_PARAMETER, f"{name} is tied here: send it only as {tied[name]}")
    if name not in shapes:
        raise ContractError(ErrorCode.UNKNOWN_PARAMETER, f"{name}: the model has no such parameter")
    if parameter.shape != tuple(shapes[name]):
        raise ContractError(
            ErrorCode.SHAPE_MISMATCH, f"{name}: {list(parameter.shape)} sent, {list(shapes[name])} here"
        )
    if parameter.dtype not in dtypes:
        raise ContractError(ErrorCode.DTYPE_MISMATCH, f"{name}: {parameter.dtype} sent, {dtypes} accepted")


def _check_complete(names: list[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
    sent = set(names)
    if len(sent) < len(names):
        twice = next(name for name in sent if names.count(name) > 1)
        raise ContractError(ErrorCode.INVALID_REQUEST, f"{twice} is listed more than once")
    if missing := sorted(shapes.keys() - sent):
        raise ContractError(
            ErrorCode.MISSING_PARAMETER, f"{missing[0]} is not sent ({len(missing)} missing in all)"
        )


def _check_tied(sent: Mapping[str, str], tied: Mapping[str, str]) -> None:
    """Checks that trainer and server tie the same weights. Otherwise a copy would keep its old values."""
    for name in sorted(sent.keys() | tied.keys()):
        if name not in sent:
            raise ContractError(
                ErrorCode.MISSING_PARAMETER, f"{name} is neither sent nor said to be tied to {tied[name]}"
            )
        if tied.get(name) != sent[name]:
            raise ContractError(
                ErrorCode.UNKNOWN_PARAMETER,
                f"{name} is said to be tied to {sent[name]}; here it is tied to {tied.get(name, 'nothing')}",
            )
