"""Checks that a call is forced if the server supports it, and otherwise refused by name."""

import json

import openai
import pytest

from tests.inference_adapters.openai_surface.client import Surface, check, refused

NAMED = {"type": "function", "function": {"name": "add"}}
SIGN = {"type": "object", "properties": {"sign": {"type": "boolean"}}, "required": ["sign"]}
SIGN["additionalProperties"] = False  # with `strict`, the model's choice is short
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": SIGN, "strict": True}}
    for name in ("add", "negate")
]


@check
def a_call_is_forced_or_refused_by_name(server: Surface) -> None:
    declared = server.contract["capabilities"]
    for choice in ("required", NAMED):
        asked = {"tools": TOOLS, "tool_choice": choice, "temperature": 1, "max_tokens": 600}
        if "forced_calls" in declared:
            _is_a_call(server, asked, choice)
        else:
            error = refused(server.chat, **asked)
            assert error.code == "unsupported_parameter", error
            assert error.param == ("tool_choice" if "tools" in declared else "tools")
    with pytest.raises(openai.BadRequestError) as without_tools:
        server.chat(tool_choice="required")
    assert without_tools.value.param == "tool_choice"


def _is_a_call(server: Surface, asked: dict, choice: object) -> None:
    """Samples at temperature 1, at which a random model would otherwise almost never call."""
    answer = server.chat(**asked, n=16, logprobs=True)
    ended = [one for one in answer.choices if one.finish_reason != "length"]
    assert ended  # the others filled their tokens with white space and further calls
    for one in ended:
        names = {call.function.name for call in one.message.tool_calls}
        assert names == {"add"} if choice is NAMED else names <= {"add", "negate"}
        assert one.finish_reason == ("stop" if choice is NAMED else "tool_calls")
        for call in one.message.tool_calls:
            assert set(json.loads(call.function.arguments)) == {"sign"}, call
    for one in answer.choices:
        assert len(one.token_ids) == len(one.logprobs.content) == one.weight_versions[-1]["end"]
