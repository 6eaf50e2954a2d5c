"""Weight updates that a server must refuse because of their manifest. G6 sends them.

Each error is tried at the beginning and the end of the manifest, and in parameters with one and with more
dimensions.
"""

from collections.abc import Callable
from typing import Any

from contracts.conformance.inference.bad_requests import BadRequest

Parameter = dict[str, Any]
PATH = "/request_weight_update"
TIED_CODES = frozenset({"missing_parameter", "invalid_request"})
TWICE_CODES = frozenset({"unknown_parameter"})


def bad_updates(request: dict[str, Any]) -> list[BadRequest]:
    """Returns bad weight updates, made from a valid `request`."""

    def bad(status: int, code: str, **changes: object) -> BadRequest:
        return BadRequest(PATH, request | changes, status, code)

    return [
        bad(409, "other_run", run="another"),
        bad(409, "stale_epoch", epoch=request["epoch"] - 1),
        bad(409, "stale_epoch", epoch=request["epoch"] + 7),
        bad(409, "stale_version", version=0),
        bad(422, "unsupported_kv_cache", kv_cache="burn"),
        *bad_parameters(request),
        *bad_tied(request),
    ]


def bad_parameters(request: dict[str, Any]) -> list[BadRequest]:
    """Returns updates whose manifest differs from the model's in one parameter."""
    parameters: list[Parameter] = request["parameters"]

    def bad(code: str, named: str, changed: list[Parameter]) -> BadRequest:
        return BadRequest(PATH, request | {"parameters": changed}, 422, code, named)

    def reshaped(name: str, change: Callable[[list[int]], list[int]]) -> list[Parameter]:
        return [p | {"shape": change(list(p["shape"]))} if p["name"] == name else p for p in parameters]

    unknown = {"name": "model.nothing", "dtype": parameters[0]["dtype"], "shape": [3]}
    found = [
        bad("unknown_parameter", "model.nothing", [*parameters, unknown]),
        bad("unknown_parameter", "model.nothing", [unknown, *parameters]),
    ]
    for name in _chosen(parameters):
        found += [
            bad("missing_parameter", name, [p for p in parameters if p["name"] != name]),
            bad("shape_mismatch", name, reshaped(name, lambda s: [s[0] - 1, *s[1:]])),
            bad("shape_mismatch", name, reshaped(name, lambda s: [*s, 1])),
            bad("shape_mismatch", name, reshaped(name, lambda s: [1, *s])),
        ]
        for dtype in ("complex128", "int8"):
            other = [p | {"dtype": dtype} if p["name"] == name else p for p in parameters]
            found.append(bad("dtype_mismatch", name, other))
        again = next(p for p in parameters if p["name"] == name)
        twice = request | {"parameters": [*parameters, again]}
        found.append(BadRequest(PATH, twice, 422, "invalid_request", name, TWICE_CODES))
    if len(max(parameters, key=_dimensions)["shape"]) > 1:
        name = max(parameters, key=_dimensions)["name"]
        found.append(bad("shape_mismatch", name, reshaped(name, lambda s: [s[0] * s[1], *s[2:]])))
    return found


def bad_tied(request: dict[str, Any]) -> list[BadRequest]:
    """Returns updates whose `tied` has a missing, an additional or a different name."""
    tied: dict[str, str] = request["tied"]
    first = request["parameters"][0]["name"]
    last = request["parameters"][-1]["name"]
    wrong: list[dict[str, str]] = [tied | {"model.nothing": first}, tied | {"model.nothing": "model.neither"}]
    if last != first:
        wrong.append(tied | {last: first})
    for name, sent in tied.items():
        other = last if sent != last else first
        wrong += [{k: v for k, v in tied.items() if k != name}, tied | {name: other}, tied | {name: name}]
        wrong.append(tied | {name: "model.neither"})
    return [
        BadRequest(PATH, request | {"tied": mapping}, 422, "unknown_parameter", "", TIED_CODES)
        for mapping in wrong
    ]


def _dimensions(parameter: Parameter) -> int:
    return len(parameter["shape"])


def _chosen(parameters: list[Parameter]) -> list[str]:
    """Returns the parameters to change: first, last, with most dimensions, and with one dimension."""
    flat = [p for p in parameters if _dimensions(p) == 1]
    chosen = [parameters[0], parameters[-1], max(parameters, key=_dimensions), *flat[:1], *flat[-1:]]
    return list(dict.fromkeys(p["name"] for p in chosen))
