"""Tool calls in what a model says: from sampled text to OpenAI's shape, and back into a chat template.

The format is Hermes', which Qwen's chat templates write too: `<tool_call>{"name": ..., "arguments": {...}}
</tool_call>`. Called by servers, for their answers, and by the pipeline, for turns that it gets as text.
"""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

OPENING = "<tool_call>"
CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class FunctionCall(BaseModel):
    name: str
    arguments: str  # JSON


class ToolCall(BaseModel):
    """One of `message.tool_calls`."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """What is said before the first call, and the calls. If one of them is malformed, all of it is text and
    nothing is called; so it is with vLLM's parser of this format."""
    try:
        calls = [_call(found) for found in CALL.findall(text)]
    except (ValueError, KeyError, TypeError, RecursionError):
        calls = []
    return (text.partition(OPENING)[0], calls) if calls else (text, [])


def _call(text: str) -> ToolCall:
    call = json.loads(text, parse_constant=_no_constant)
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    function = FunctionCall(name=call["name"], arguments=arguments)
    function.model_dump_json().encode()  # half of a surrogate pair cannot be sent
    return ToolCall(id=f"call_{uuid.uuid4().hex}", function=function)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages of OpenAI's as chat templates take them: with the arguments of a call as an object. Raises
    ValueError where they are not JSON."""
    return [_for_template(message) for message in messages]


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return dict(message)
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        if isinstance(function["arguments"], str):
            function = function | {"arguments": json.loads(function["arguments"])}
        calls.append(call | {"function": function})
    return dict(message) | {"tool_calls": calls}
