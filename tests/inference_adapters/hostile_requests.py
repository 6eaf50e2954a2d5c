"""Malformed and hostile requests, as bytes: a table, and seeded mutations of valid ones.

JSON is written by hand, because the numbers and characters that matter are those which no library writes.
"""

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

REFUSED = range(400, 500)
DEEP = 100_000


class Raw(str):
    """JSON as it stands."""


@dataclass(frozen=True)
class Hostile:
    """One connection's worth."""

    name: str
    data: bytes
    statuses: range | tuple[int, ...] | None = (
        None  # those that are right; None: whatever is no server's failure
    )
    hang_up: Literal["after the answer", "unread", "after a byte"] = "after the answer"
    is_http: bool = True


def to_json(value: Any) -> str:
    match value:
        case Raw():
            return value
        case dict():
            return "{" + ",".join(f"{to_json(key)}:{to_json(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(to_json, value)) + "]"
    return json.dumps(value)


def http(
    path: str,
    body: Any = b"",
    method: str = "POST",
    token: str | None = None,
    content_type: str = "application/json",
    headers: str = "",
) -> bytes:
    content = body if isinstance(body, bytes) else to_json(body).encode()
    if "content-length" not in headers and "transfer-encoding" not in headers:
        headers += f"content-length: {len(content)}\r\n"
    if token:
        headers += f"authorization: Bearer {token}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nhost: server\r\nconnection: close\r\n"
    return f"{head}content-type: {content_type}\r\n{headers}\r\n".encode() + content


CHAT, TEXT, SCORE = "/v1/chat/completions", "/v1/completions", "/score"
JOIN, UPDATE, ABORT = "/init_process_group", "/request_weight_update", "/abort_weight_update"


def valid_bodies(model: str) -> dict[str, dict[str, Any]]:
    """A body for every route that takes one."""
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


# --- the table ------------------------------------------------------------------------------------

BIG = Raw("1" + "0" * 400)
SURROGATE = Raw('"\\ud800"')
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SAMPLING: dict[str, tuple[dict[str, Any], range | None]] = {
    "temperature 1e-38": ({"temperature": 1e-38}, None),
    "temperature 1e-45": ({"temperature": 1e-45}, None),
    "temperature 1e-400": ({"temperature": Raw("1e-400")}, None),
    "temperature 1e400": ({"temperature": Raw("1e400")}, REFUSED),
    "temperature NaN": ({"temperature": Raw("NaN")}, REFUSED),
    "temperature -Infinity": ({"temperature": Raw("-Infinity")}, REFUSED),
    "temperature -0.0": ({"temperature": Raw("-0.0"), "n": 1}, None),
    "temperature text": ({"temperature": "hot"}, REFUSED),
    "top_k 10**400": ({"top_k": BIG}, REFUSED),
    "top_k -2": ({"top_k": -2}, REFUSED),
    "top_k 2**62": ({"top_k": 2**62}, None),
    "top_p NaN": ({"top_p": Raw("NaN")}, REFUSED),
    "top_p 1e-300": ({"top_p": 1e-300}, None),
    "n 0": ({"n": 0}, REFUSED),
    "n 129": ({"n": 129}, REFUSED),
    "n 10**400": ({"n": BIG}, REFUSED),
    "n and no end": ({"n": 128, "max_tokens": 2**30}, REFUSED),
    "max_tokens 0": ({"max_tokens": 0}, REFUSED),
    "max_tokens 2**63": ({"max_tokens": 2**63}, REFUSED),
    "max_tokens 1.5": ({"max_tokens": 1.5}, REFUSED),
    "seed 2**64": ({"seed": 2**64}, REFUSED),
    "seed at its edge": ({"seed": 2**63 - 1}, None),
    "seed at its other edge": ({"seed": -(2**63)}, None),
    "stop_token_ids negative": ({"stop_token_ids": [-1]}, None),
    "stop_token_ids huge": ({"stop_token_ids": [2**31 - 1]}, None),
    "stop_token_ids 10**400": ({"stop_token_ids": [BIG]}, REFUSED),
    "stop_token_ids many": ({"stop_token_ids": list(range(100_000))}, REFUSED),
    "stop empty": ({"stop": ""}, None),
    "stop surrogate": ({"stop": SURROGATE}, REFUSED),
    "stop many": ({"stop": ["x" * 100] * 5000}, REFUSED),
    "model surrogate": ({"model": SURROGATE}, REFUSED),
    "model unknown": ({"model": "no such model"}, (404,)),
    "model long": ({"model": "m" * 10_000_000}, REFUSED),
    "no model": ({"model": None}, None),
    "unknown field": ({"surprise": 1}, REFUSED),
    "unknown field surrogate": ({SURROGATE: 1}, REFUSED),
    "stream and n": ({"stream": True, "n": 4}, None),
    "stream text": ({"stream": "perhaps"}, REFUSED),
    "deep field": ({"stop": Raw("[" * DEEP + "]" * DEEP)}, REFUSED),
}
PROMPTS: dict[str, tuple[Any, range | None]] = {
    "empty ids": ([], REFUSED),
    "empty text": ("", REFUSED),
    "negative id": ([5, -1], REFUSED),
    "id beyond the vocabulary": ([5, 2**30], REFUSED),
    "id 2**63": ([2**63], REFUSED),
    "id 10**400": ([BIG], REFUSED),
    "mixed": ([5, "a"], REFUSED),
    "nested": ([[5], [6, [7]]], REFUSED),
    "fraction": ([5.5], REFUSED),
    "null": (None, REFUSED),
    "surrogate": (SURROGATE, REFUSED),
    "many prompts": ([[5]] * 5000, REFUSED),
    "many texts": (["x"] * 5000, REFUSED),
    "an empty one of several": ([[5], []], REFUSED),
    "texts and ids": (["x", [5]], REFUSED),
    "NUL": ("\0a\0", None),
    "long text": ("1 + 1 = " * 100_000, REFUSED),
    "too many ids": ([5] * 100_000, REFUSED),
    "image": ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], REFUSED),
}
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
BODIES: dict[str, bytes] = {
    "no body": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"1e999",
    "half": b'{"model": "x", "prompt": [1,',
    "bad UTF-8": b'{"model": "\xff\xfe"}',
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "NUL": b"\0" * 100,
    "a number of 5000 digits": b'{"n": ' + b"1" * 5000 + b"}",
    "gzip": b"\x1f\x8b\x08\x00" + bytes(range(256)),
}
PATHS = {
    "/": (404, 405),
    "/v1": (404, 405),
    "/v1/engines": (404, 405),
    "/weight_update/": (404, 405),
    "/weight_update/abc": REFUSED,
    "/weight_update/-1": REFUSED,
    "/weight_update/1" + "0" * 400: REFUSED,
    "/weight_update/1?wait_s=NaN": REFUSED,
    "/weight_update/1?wait_s=1e400": REFUSED,
    "/weight_update/99?wait_s=-1": REFUSED,
    "/weight_update/99?wait_s=" + "9" * 5000: REFUSED,
    "/%00%ff": (404, 405),
    "/../../etc/passwd": (404, 405),
    "/v1/models/%ed%a0%80": (404, 405),
    "/health?challenge=" + "x" * 5000: None,
    "/health?challenge=%ed%a0%80": None,
}
ELSEWHERE = [  # paths of other servers' APIs, and of vLLM's own
    "/tokenize", "/detokenize", "/v1/responses", "/v1/messages", "/v1/embeddings", "/pooling", "/classify",
    "/rerank", "/invocations", "/inference/v1/generate", "/v1/audio/transcriptions", "/v1/load_lora_adapter",
    "/pause", "/resume", "/sleep", "/collective_rpc", "/update_weights", "/reset_prefix_cache",
    "/abort_requests", "/generate", "/v1/completions/render", "/v1/chat/completions/render",
    "/scale_elastic_ep", "/server_info",
]  # fmt: skip

OF_VLLM: dict[str, list[dict[str, Any]]] = {
    "/tokenize": [{"prompt": SURROGATE}, {"prompt": "x" * 300_000}, {"messages": [{"role": "\0"}]}],
    "/detokenize": [{"tokens": [2**30]}, {"tokens": [-1]}, {"tokens": [BIG]}, {"tokens": ["a"]}],
    "/v1/responses": [
        {"input": "x", "max_output_tokens": 2, "temperature": 1e-45},
        {"input": SURROGATE, "max_output_tokens": 2},
        {"input": [{"role": "user", "content": [7]}], "max_output_tokens": 2},
        {"input": "x", "max_output_tokens": 2, "temperature": Raw("NaN")},
        {"input": "x", "max_output_tokens": 2, "tools": [{"type": "function"}]},
    ],
    "/v1/messages": [{"max_tokens": 2, "temperature": 1e-40, "messages": [{"role": "user", "content": "x"}]}],
    "/inference/v1/generate": [{"token_ids": [2**30], "sampling_params": {"max_tokens": 2}}],
}


def table(model: str, token: str | None) -> list[Hostile]:
    """Hand-written requests. Every engine must give each one of its statuses."""
    valid = valid_bodies(model)
    return [
        *_of_fields(valid, token),
        *_of_control(valid, token),
        *_of_bodies(token),
        *_of_http(valid, token),
        *_of_connections(valid, token),
    ]


def _of_fields(valid: dict[str, dict[str, Any]], token: str | None) -> Iterator[Hostile]:
    for name, (changes, statuses) in SAMPLING.items():
        for path in (CHAT, TEXT):
            yield Hostile(f"{path}: {name}", http(path, valid[path] | changes, token=token), statuses)
    for name, (prompt, statuses) in PROMPTS.items():
        yield Hostile(f"prompt: {name}", http(TEXT, valid[TEXT] | {"prompt": prompt}, token=token), statuses)
    for name, (messages, statuses) in MESSAGES.items():
        body = valid[CHAT] | {"messages": messages}
        yield Hostile(f"messages: {name}", http(CHAT, body, token=token), statuses)
    for name, (tools, statuses) in TOOLS.items():
        yield Hostile(f"tools: {name}", http(CHAT, valid[CHAT] | {"tools": tools}, token=token), statuses)
    for sequences in ([[]], [[-1]], [[2**30]], [[BIG]], [["a"]], [[5] * 100_000], [[5]] * 5000, [], None, 5):
        body = {"sequences": sequences}
        yield Hostile(f"{SCORE}: {str(sequences)[:40]}", http(SCORE, body, token=token), REFUSED)
    for temperature in (0, -1, 1e-45, Raw("NaN"), Raw("1e400")):
        body = {"sequences": [[5, 6]], "temperature": temperature}
        yield Hostile(f"{SCORE}: temperature {temperature}", http(SCORE, body, token=token), REFUSED)


def _of_control(valid: dict[str, dict[str, Any]], token: str | None) -> Iterator[Hostile]:
    for path, changes in [
        (JOIN, {"master_port": 0}),
        (JOIN, {"master_port": 99999}),
        (JOIN, {"master_port": BIG}),
        (JOIN, {"timeout_s": 1e9}),
        (JOIN, {"timeout_s": Raw("NaN")}),
        (JOIN, {"world_size": BIG}),
        (JOIN, {"rank_offset": 0}),
        (JOIN, {"rank_offset": 5}),
        (JOIN, {"master_address": SURROGATE}),
        (JOIN, {"master_address": "\0"}),
        (JOIN, {"group_name": "x" * 1_000_000}),
        (JOIN, {"backend": "carrier pigeon"}),
        (JOIN, {"epoch": -1}),
        (UPDATE, {"parameters": []}),
        (UPDATE, {"parameters": [{"name": "x", "dtype": "float32", "shape": [BIG]}]}),
        (UPDATE, {"parameters": [{"name": "x", "dtype": "float32", "shape": [-1]}]}),
        (UPDATE, {"parameters": [{"name": SURROGATE, "dtype": "float32", "shape": []}]}),
        (UPDATE, {"parameters": [{"name": "x", "dtype": "complex512", "shape": []}] * 50_000}),
        (UPDATE, {"bucket_bytes": BIG}),
        (UPDATE, {"version": BIG}),
        (UPDATE, {"timeout_s": Raw("1e400")}),
        (UPDATE, {"tied": {SURROGATE: "x"}}),
        (UPDATE, {}),
        (ABORT, {"version": BIG}),
        (ABORT, {"run": SURROGATE}),
        (ABORT, {}),
    ]:
        body = http(path, valid[path] | changes, token=token)
        yield Hostile(f"{path}: {to_json(changes)[:60]}", body, REFUSED)


def _of_bodies(token: str | None) -> Iterator[Hostile]:
    for path in (CHAT, TEXT, SCORE, JOIN, UPDATE, ABORT):
        for name, body in BODIES.items():
            yield Hostile(f"{path}: {name}", http(path, body, token=token), REFUSED)


def _of_http(valid: dict[str, dict[str, Any]], token: str | None) -> Iterator[Hostile]:
    for path, statuses in PATHS.items():
        yield Hostile(f"GET {path[:60]}", http(path, method="GET", token=token), statuses)
    for path in ELSEWHERE:
        for body in (b"", b"{", to_json(valid[TEXT]).encode(), b'{"prompt": 7, "input": [[]]}'):
            yield Hostile(f"POST {path}", http(path, body, token=token))
    model = valid[TEXT]["model"]
    for path, bodies in OF_VLLM.items():
        for body in bodies:
            yield Hostile(
                f"POST {path}: {to_json(body)[:80]}", http(path, {"model": model} | body, token=token)
            )
    for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW"):
        for path in (CHAT, UPDATE):
            yield Hostile(f"{method} {path}", http(path, method=method, token=token), REFUSED)
    yield Hostile("POST /health", http("/health", token=token), (405,))
    body = to_json(valid[TEXT]).encode()
    for content_type in ("text/plain", "multipart/form-data", "application/xml", "a" * 1000, ""):
        yield Hostile(f"as {content_type[:30]!r}", http(TEXT, body, token=token, content_type=content_type))
    twice = body[:-1] + b',"n":1,"n":129,"n":2}'
    yield Hostile("a key three times", http(TEXT, twice, token=token))
    yield Hostile("many headers", http(TEXT, body, token=token, headers="a: b\r\n" * 200))
    yield Hostile("a long header", http(TEXT, body, token=token, headers=f"a: {'b' * 40_000}\r\n"))
    yield Hostile(
        "a wrong token", http(TEXT, body, token="wrong" if token else None), (401,) if token else None
    )
    if token:
        yield Hostile("no token", http(TEXT, body), (401,))
        yield Hostile("a token of bytes", http(TEXT, body, headers="authorization: Bearer \xff\r\n"), (401,))


def _of_connections(valid: dict[str, dict[str, Any]], token: str | None) -> Iterator[Hostile]:
    """Connections that break off, and what is hardly HTTP."""
    long = valid[TEXT] | {"max_tokens": 200, "temperature": 0, "n": 1}
    whole = http(TEXT, long, token=token)
    stream = http(TEXT, long | {"stream": True}, token=token)
    yield Hostile("gone before the answer", whole, hang_up="unread")
    yield Hostile("gone in a stream", stream, hang_up="after a byte")
    yield Hostile("gone in the body", whole[:-20], hang_up="unread")
    yield Hostile("gone in the header", whole[:40], hang_up="unread")
    yield Hostile("nothing", b"", hang_up="unread", is_http=False)
    chunked = http(TEXT, b"", token=token, headers="transfer-encoding: chunked\r\n")
    for name, body in {
        "broken": b"5\r\nab",
        "negative": b"-5\r\n",
        "no number": b"zz\r\n{}\r\n0\r\n\r\n",
    }.items():
        yield Hostile(f"{name} chunks", chunked + body, hang_up="unread", is_http=False)
    yield Hostile("a length of -1", http(TEXT, b"{}", headers="content-length: -1\r\n"), is_http=False)
    yield Hostile(
        "two lengths", http(TEXT, b"{}", headers="content-length: 2\r\ncontent-length: 3\r\n"), is_http=False
    )
    yield Hostile(
        "too large", http(TEXT, b"", headers="content-length: 99999999999\r\n", token=token), (413,)
    )
    yield Hostile("bytes", bytes(range(256)) * 4 + b"\r\n\r\n", is_http=False)
    yield Hostile("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", is_http=False)
    yield Hostile("an upgrade", http("/v1/completions", method="GET", token=token, headers=(
        "upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eDEyMw==\r\n")))  # fmt: skip


# --- mutations --------------------------------------------------------------------------------------

EDGES: list[Any] = [
    None, True, False, "", "x", "x" * 300, "\0", "NaN", "💥" * 50, SURROGATE, Raw('"\\udc00\\ud800"'),
    0, 1, -1, 127, 128, 129, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, BIG,
    Raw("1" * 5000), 0.5, 1e-3, 1e-5, 1e-38, 1e-45, 1e308, Raw("1e400"), Raw("-1e400"), Raw("1e-400"),
    Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("-0.0"), [], {}, [[]], [None],
    [1, "a", None], {"a": {"b": []}}, list(range(97)),
    Raw("[" * 500 + "]" * 500), Raw('{"a":' * 500 + "1" + "}" * 500), {"type": "text", "text": "x"},
]  # fmt: skip
FIELDS = [  # of other APIs, and some that vLLM honours
    "min_tokens", "logit_bias", "guided_json", "guided_regex", "structured_outputs", "best_of", "echo",
    "suffix", "prompt_logprobs", "top_logprobs", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "min_p", "ignore_eos", "bad_words", "allowed_token_ids", "skip_special_tokens",
    "truncate_prompt_tokens", "response_format", "stream_options", "chat_template",
    "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "documents",
    "mm_processor_kwargs", "priority", "request_id", "cache_salt", "kv_transfer_params", "vllm_xargs",
    "parallel_tool_calls", "user", "tool_choice", "tools", "functions", "use_beam_search",
    "length_penalty", "prompt_embeds", "logits_processors", "top_k", "top_p", "seed", "stop",
    "max_completion_tokens", "return_token_ids", "return_tokens_as_token_ids", "include_reasoning",
    "thinking_token_budget", "repetition_detection", "reasoning_effort", "media_io_kwargs", "detokenize",
]  # fmt: skip
KEPT = ("timeout_s", "takeover")  # a valid request to join waits as long as it says


def mutations(model: str, token: str | None, seed: int) -> Iterator[Hostile]:
    """Endlessly many, the same ones for the same seed."""
    drawn = random.Random(seed)
    valid = valid_bodies(model)
    while True:
        path = drawn.choice([CHAT, CHAT, TEXT, TEXT, SCORE, JOIN, UPDATE, ABORT])
        body = json.loads(json.dumps(valid[path]))
        for _ in range(drawn.choice([1, 1, 2, 3])):
            _mutate(body, drawn, generates=path in (CHAT, TEXT))
        data = http(path, _mutated_bytes(to_json(body).encode(), drawn), token=token)
        hang_up = drawn.choices(("after the answer", "unread", "after a byte"), (18, 1, 1))[0]
        yield Hostile(
            f"{path}: {data[data.index(b'{') :][:300]!r}" if b"{" in data else path, data, hang_up=hang_up
        )


def _mutate(body: Any, drawn: random.Random, generates: bool) -> None:
    """Replaces, drops or adds one thing, somewhere in the body."""
    places = list(_places(body))
    if not places:  # all was dropped before
        return
    holder, key = drawn.choice(places)
    match drawn.choices(("replace", "drop", "add"), (6, 1, 2 if generates else 1))[0]:
        case "replace":
            holder[key] = deepcopy(drawn.choice(EDGES))
        case "drop":
            del holder[key]
        case "add":
            body[drawn.choice(FIELDS if generates else ["surprise", "n"])] = drawn.choice(
                [*EDGES, 1, 1, 2, "x"]
            )


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (dict or list, key) in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key not in KEPT:
            yield value, key
            yield from _places(item)


def _mutated_bytes(body: bytes, drawn: random.Random) -> bytes:
    """One in eight is broken as text too."""
    if drawn.random() > 1 / 8 or not body:
        return body
    at = drawn.randrange(len(body))
    match drawn.choice(("cut", "byte", "insert", "twice")):
        case "cut":
            return body[:at]
        case "byte":
            return body[:at] + bytes([drawn.randrange(256)]) + body[at + 1 :]
        case "insert":
            return body[:at] + drawn.randbytes(3) + body[at:]
    return body + body
