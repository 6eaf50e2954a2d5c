"""Wrong values of the fields of a generation request, each with the allowed statuses."""

from typing import Any

from tests.inference_adapters.hostile.http_bytes import BIG, DEEP, REFUSED, SURROGATE, Raw

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SAMPLING: dict[str, tuple[dict[str, Any], range | None]] = {
    "temperature 1e-38": ({"temperature": 1e-38}, None), "temperature 1e-45": ({"temperature": 1e-45}, None),
    "temperature 1e-400": ({"temperature": Raw("1e-400")}, None),
    "temperature 1e400": ({"temperature": Raw("1e400")}, REFUSED),
    "temperature NaN": ({"temperature": Raw("NaN")}, REFUSED),
    "temperature -Infinity": ({"temperature": Raw("-Infinity")}, REFUSED),
    "temperature -0.0": ({"temperature": Raw("-0.0"), "n": 1}, None),
    "temperature text": ({"temperature": "hot"}, REFUSED), "top_k 10**400": ({"top_k": BIG}, REFUSED),
    "top_k -2": ({"top_k": -2}, REFUSED), "top_k 2**62": ({"top_k": 2**62}, None),
    "top_p NaN": ({"top_p": Raw("NaN")}, REFUSED), "top_p 1e-300": ({"top_p": 1e-300}, None),
    "n 0": ({"n": 0}, REFUSED), "n 129": ({"n": 129}, REFUSED), "n 10**400": ({"n": BIG}, REFUSED),
    "n and no end": ({"n": 128, "max_tokens": 2**30}, REFUSED), "max_tokens 0": ({"max_tokens": 0}, REFUSED),
    "max_tokens 2**63": ({"max_tokens": 2**63}, REFUSED), "max_tokens 1.5": ({"max_tokens": 1.5}, REFUSED),
    "seed 2**64": ({"seed": 2**64}, REFUSED), "seed at its edge": ({"seed": 2**63 - 1}, None),
    "seed at its other edge": ({"seed": -(2**63)}, None),
    "stop_token_ids negative": ({"stop_token_ids": [-1]}, None),
    "stop_token_ids huge": ({"stop_token_ids": [2**31 - 1]}, None),
    "stop_token_ids 10**400": ({"stop_token_ids": [BIG]}, REFUSED),
    "stop_token_ids many": ({"stop_token_ids": list(range(100_000))}, REFUSED),
    "stop empty": ({"stop": ""}, None), "stop surrogate": ({"stop": SURROGATE}, REFUSED),
    "stop many": ({"stop": ["x" * 100] * 5000}, REFUSED), "model surrogate": ({"model": SURROGATE}, REFUSED),
    "model unknown": ({"model": "no such model"}, (404,)),
    "model long": ({"model": "m" * 10_000_000}, REFUSED), "no model": ({"model": None}, None),
    "unknown field": ({"surprise": 1}, REFUSED), "unknown field surrogate": ({SURROGATE: 1}, REFUSED),
    "stream and n": ({"stream": True, "n": 4}, None), "stream text": ({"stream": "perhaps"}, REFUSED),
    "deep field": ({"stop": Raw("[" * DEEP + "]" * DEEP)}, REFUSED),
}  # fmt: skip
PROMPTS: dict[str, tuple[Any, range | None]] = {
    "empty ids": ([], REFUSED), "empty text": ("", REFUSED), "negative id": ([5, -1], REFUSED),
    "id beyond the vocabulary": ([5, 2**30], REFUSED), "id 2**63": ([2**63], REFUSED),
    "id 10**400": ([BIG], REFUSED), "mixed": ([5, "a"], REFUSED), "nested": ([[5], [6, [7]]], REFUSED),
    "fraction": ([5.5], REFUSED), "null": (None, REFUSED), "surrogate": (SURROGATE, REFUSED),
    "many prompts": ([[5]] * 5000, REFUSED), "many texts": (["x"] * 5000, REFUSED),
    "an empty one of several": ([[5], []], REFUSED), "texts and ids": (["x", [5]], REFUSED),
    "NUL": ("\0a\0", None), "long text": ("1 + 1 = " * 100_000, REFUSED),
    "too many ids": ([5] * 100_000, REFUSED),
    "image": ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], REFUSED),
}  # fmt: skip
MESSAGES: dict[str, tuple[Any, range | None]] = {
    "no messages": ([], REFUSED),
    "messages null": (None, REFUSED),
    "message is text": (["hello"], REFUSED),
    "message is empty": ([{}], REFUSED),
    "no role": ([{"content": "x"}], REFUSED),
    "role of its own": ([{"role": "\x1b[31m", "content": "x"}], None),
    "role is a list": ([{"role": ["user"], "content": "x"}], REFUSED),
    "content null": ([{"role": "user", "content": None}], None),
    "content a number": ([{"role": "user", "content": 7}], None),
    "content an object": ([{"role": "user", "content": {"a": BIG}}], None),
    "content parts": ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], range(200, 201)),
    "content image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]}],
        REFUSED,
    ),
    "content surrogate": ([{"role": "user", "content": SURROGATE}], REFUSED),
    "role surrogate": ([{"role": SURROGATE, "content": "x"}], REFUSED),
    "content long": ([{"role": "user", "content": "1 + 1 = " * 100_000}], REFUSED),
    "many messages": ([{"role": "user", "content": "x"}] * 5000, REFUSED),
    "call without a function": ([{"role": "assistant", "content": "", "tool_calls": [{}]}], REFUSED),
    "calls are text": ([{"role": "assistant", "content": "", "tool_calls": "f(1)"}], REFUSED),
    "arguments are no JSON": (
        [{"role": "assistant", "content": "", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]}],
        None,
    ),
    "arguments are deep": (
        [{"role": "assistant", "content": "", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * DEEP}}]}],
        REFUSED,
    ),
    "jinja": ([{"role": "user", "content": "{{ messages.__class__ }}{% for i in range(9**9) %}"}], None),
}  # fmt: skip
TOOLS: dict[str, tuple[Any, range | None]] = {
    "tools are text": ("f", REFUSED),
    "tool is empty": ([{}], None),
    "tool of numbers": ([1, 2], REFUSED),
    "tool surrogate": ([TOOL | {"function": {"name": SURROGATE}}], REFUSED),
    "tools are long": ([TOOL | {"function": {"name": "f", "description": "x" * 800_000}}], REFUSED),
}
