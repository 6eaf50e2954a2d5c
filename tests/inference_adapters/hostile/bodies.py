"""Requests, and a valid body for each route.

JSON is written by hand, because no library writes the numbers and characters that matter.
"""

import json
from dataclasses import dataclass
from typing import Any


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


CHAT, TEXT, SCORE = "/v1/chat/completions", "/v1/completions", "/score"
JOIN, UPDATE, ABORT = "/init_process_group", "/request_weight_update", "/abort_weight_update"


def valid_bodies(model: str) -> dict[str, dict[str, Any]]:
    """Returns a body for every route that takes one."""
    message = {"role": "user", "content": "1 + 1 ="}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "2"}
    sampling = {"model": model, "max_tokens": 3, "temperature": 1.0, "n": 2, "logprobs": True}
    parameter = {"name": "model.norm.weight", "dtype": "float32", "shape": [64]}
    return {
        CHAT: sampling | {"messages": [message, said, result, message], "stream": False},
        TEXT: sampling | {"prompt": [5, 6, 7], "stream": False, "stop_token_ids": [4]},
        SCORE: {"sequences": [[5, 6, 7], [8]], "temperature": 1.0},
        JOIN: {
            "run": "hostile", "epoch": 1, "group_name": "g", "backend": "gloo", "rank_offset": 1,
            "master_address": "127.0.0.1", "master_port": 1, "world_size": 2, "timeout_s": 0.2,
        },
        UPDATE: {
            "run": "hostile", "epoch": 1, "version": 1, "parameters": [parameter], "tied": {},
            "bucket_bytes": 1024, "kv_cache": "keep", "receive": "paused", "timeout_s": 1.0,
        },
        ABORT: {"run": "hostile", "epoch": 1, "version": 1},
    }  # fmt: skip
