"""Removes fields without effect from a request: nulls, and fields at their neutral value.

Clients of OpenAI's API send many fields at their defaults. It is called before a body is parsed, for every
engine. A field with another value stays, and is honoured or refused by name.
"""

import json
from typing import Any

NEUTRAL: dict[str, tuple[Any, ...]] = {  # the values without effect, for each field
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "parallel_tool_calls": (True,),
    "verbosity": ("medium",),
    "stream_options": ({},),
    "tools": ([],),
    "stop": ("", []),
    "echo": (False,),
    "arrays": (False,),
    "as_completed": (False,),
    "suffix": ("",),
    # fields of vLLM and SGLang, whose clients also send them
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
}
LABELS = ("user", "safety_identifier", "prompt_cache_key")  # texts that name the client, without effect


def asked_for(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the body without fields that have no effect."""
    asked = {name: value for name, value in body.items() if not _asks_for_nothing(name, value)}
    if type(asked.get("best_of")) is int and asked["best_of"] == asked.get("n", 1):
        del asked["best_of"]
    if "tools" not in asked and asked.get("tool_choice") in ("auto", "none"):
        del asked["tool_choice"]
    return asked


def only_neutral(name: str) -> str | None:
    """Returns a line with the field's accepted values, or None if none is accepted."""
    if name not in NEUTRAL:
        return None
    return f"this server takes only {' or '.join(map(json.dumps, NEUTRAL[name]))}"


def _asks_for_nothing(name: str, value: Any) -> bool:
    if value is None:
        return True
    if name in LABELS:
        return isinstance(value, str)
    # In Python, false equals 0 and true equals 1; in JSON they do not.
    return any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in NEUTRAL.get(name, ())
    )
