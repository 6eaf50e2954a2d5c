"""Seeded mutations of valid requests."""

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tests.inference_adapters.hostile.bodies import (
    BIG,
    CHAT,
    SURROGATE,
    TEXT,
    Hostile,
    Raw,
    to_json,
    valid_bodies,
)

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
KEPT = ("timeout_s", "takeover")  # a valid request to join waits for its own timeout


def mutations(model: str, seed: int) -> Iterator[Hostile]:
    """Yields an endless sequence, which depends only on the seed."""
    drawn = random.Random(seed)
    valid = valid_bodies(model)
    while True:
        path = drawn.choice([CHAT, TEXT, *valid])
        body = json.loads(json.dumps(valid[path]))
        for _ in range(drawn.choice([1, 1, 2, 3])):
            _mutate(body, drawn, generates=path in (CHAT, TEXT))
        yield Hostile(path, _mutated_bytes(to_json(body).encode(), drawn))


def _mutate(body: Any, drawn: random.Random, generates: bool) -> None:
    """Replaces, drops or adds one thing, somewhere in the body."""
    places = list(_places(body))
    if not places:  # everything has been removed
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
    """Yields every (dict or list, key) in the value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key not in KEPT:
            yield value, key
            yield from _places(item)


def _mutated_bytes(body: bytes, drawn: random.Random) -> bytes:
    """Returns the mutated body, of which one in eight is also broken as text."""
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
