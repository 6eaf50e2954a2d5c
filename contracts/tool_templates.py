"""Determines if a model supports tools, by rendering its chat template.

Engines call `knows_tools` to declare their capabilities, and the launcher before a run that needs tools. The
tokenizer is one of Hugging Face, whose packages this module must not import.
"""

from typing import Any

from contracts.tool_calls import parse_tool_calls

NAME = "a_tool_of_nobody"
QUESTION = "a question that nobody asks"
TOOL = {"type": "function", "function": {"name": NAME, "description": "", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": NAME, "arguments": {}}}
OPENING = [{"role": "user", "content": QUESTION}]
CALLED = [*OPENING, {"role": "assistant", "content": "", "tool_calls": [CALL]}]


def knows_tools(tokenizer: Any) -> bool:
    """Returns True if the chat template lists tools and writes calls that `parse_tool_calls` can parse.

    The calls must survive encoding and decoding, in which a tag that is a special token is lost.
    """
    try:
        shown = tokenizer.apply_chat_template(OPENING, tools=[TOOL], tokenize=False)
        called = tokenizer.apply_chat_template(CALLED, tools=[TOOL], tokenize=False)
    except Exception:  # templates raise arbitrary errors for features that they do not support
        return False
    token_ids = tokenizer(called.rpartition(QUESTION)[2])["input_ids"]
    _, calls = parse_tool_calls(tokenizer.decode(token_ids, skip_special_tokens=True))
    return NAME in shown and [call.function.name for call in calls] == [NAME]
