"""Checks that clients of OpenAI's API get the same from every engine; `CHECKS` runs them on each."""

from tests.inference_adapters.openai_surface import (
    forced_calls,
    logprobs,
    messages,
    names,
    prompts,
    refusals,
    stop_strings,
    streams,
)
from tests.inference_adapters.openai_surface.client import CHECKS, NAME, Surface

__all__ = [
    "CHECKS", "NAME", "Surface", "forced_calls", "logprobs", "messages", "names", "prompts", "refusals",
    "stop_strings", "streams",
]  # fmt: skip
