"""Converts tool calls from sampled text to OpenAI's format, and from there to the input of chat templates.

The text format is Hermes', which Qwen's chat templates also write: `<tool_call>{"name": ..., "arguments":
{...}} </tool_call>`. Servers parse their responses with it, and the pipeline parses turns that are text.
"""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

OPENING = "<tool_call>"
CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
THOUGHT_END = "</think>"


class FunctionCall(BaseModel):
    """The `function` of a tool call."""

    name: str
    arguments: str  # a JSON object


class ToolCall(BaseModel):
    """One element of `message.tool_calls`."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Returns the text before the first call, and the calls. A call inside a thought counts as text.

    If a call is malformed, returns the complete text and no calls, as vLLM's parser of this format does.
    """
    answer = without_thoughts(text)
    try:
        calls = [_call(found) for found in CALL.findall(answer)]
    except (ValueError, KeyError, TypeError, RecursionError):
        calls = []
    return (text[: answer.index(OPENING)], calls) if calls else (text, [])


def without_thoughts(text: str) -> str:
    """Returns the text with each character of a thought replaced by a space.

    A thought extends from `<think>` to the next `</think>` or to the end of the text. All text before an
    unmatched `</think>` is a thought too, because the prompt may have opened it, or thoughts may be nested.
    """
    text = THOUGHT.sub(lambda found: " " * len(found[0]), text)
    thought, end, answer = text.rpartition(THOUGHT_END)
    return " " * len(thought + end) + answer


def _call(text: str) -> ToolCall:
    call = json.loads(text, parse_constant=_no_constant)
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    function = FunctionCall(name=call["name"], arguments=arguments)
    function.model_dump_json().encode()  # raises ValueError for half of a surrogate pair
    return ToolCall(id=f"call_{uuid.uuid4().hex}", function=function)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns OpenAI's messages with the arguments of calls parsed into objects, as chat templates expect.

    Raises ValueError if the arguments are not JSON.
    """
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
