"""Removes nulls and fields with a neutral value, which has no effect, from a request.

Clients of OpenAI's API send many fields at their defaults. Every server calls it before parsing a body. It
keeps fields with other values, which the server then honours or refuses by name.
"""

import json
from typing import Any

NEUTRAL: dict[str, tuple[Any, ...]] = {  # field -> its values without effect
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
    "chat_template_kwargs": ({},),
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
LABELS = ("user", "safety_identifier", "prompt_cache_key")  # strings that identify the client


def without_neutral(body: dict[str, Any]) -> dict[str, Any]:
    """Returns the body without fields that have no effect."""
    asked = {name: value for name, value in body.items() if not _is_neutral(name, value)}
    if type(asked.get("best_of")) is int and asked["best_of"] == asked.get("n", 1):
        del asked["best_of"]
    if "tools" not in asked and asked.get("tool_choice") in ("auto", "none"):
        del asked["tool_choice"]
    return asked


def accepted_values(name: str) -> str | None:
    """Returns a message with the field's accepted values, or None if it has none."""
    if name not in NEUTRAL:
        return None
    return f"this server takes only {' or '.join(map(json.dumps, NEUTRAL[name]))}"


def _is_neutral(name: str, value: Any) -> bool:
    if value is None:
        return True
    if name in LABELS:
        return isinstance(value, str)
    # False == 0 in Python, but false and 0 differ in JSON.
    return any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in NEUTRAL.get(name, ())
    )
