"""Requests, and a valid body for each route.

JSON is written by hand, because no library writes the numbers and characters that matter.
"""

import json
from dataclasses import dataclass
from typing import Any

from contracts.schema.routes import ROUTES
from tests.contracts.valid_requests import VALID


class Raw(str):
    """JSON that is written unchanged."""


BIG = Raw("1" + "0" * 400)
SURROGATE = Raw('"\\ud800"')


@dataclass(frozen=True)
class Hostile:
    """A POST request."""

    path: str
    body: bytes

    def __str__(self) -> str:
        return f"{self.path}: {self.body[:300]!r}"


def to_json(value: Any) -> str:
    match value:
        case Raw():
            return value
        case dict():
            return "{" + ",".join(f"{to_json(key)}:{to_json(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(to_json, value)) + "]"
    return json.dumps(value)


CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def valid_bodies(model: str) -> dict[str, dict[str, Any]]:
    """Returns a body for every route that takes one."""
    message = {"role": "user", "content": "1 + 1 ="}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "2"}
    generates = {"model": model, "n": 2, "logprobs": True, "stream": False}
    parameter = {"name": "model.norm.weight", "dtype": "float32", "shape": [64]}
    more: dict[str, dict[str, Any]] = {
        CHAT: generates | {"messages": [message, said, result, message]},
        TEXT: generates | {"prompt": [5, 6, 7]},
        "/request_weight_update": {
            "parameters": [parameter], "tied": {}, "kv_cache": "keep", "receive": "paused",
        },
    }  # fmt: skip
    return {route.path: VALID[route.request] | more.get(route.path, {}) for route in ROUTES if route.request}
