"""Tells whether a model can use tools, by rendering its chat template.

Engines call it when they declare their capabilities; the launcher calls it before a run that needs tools. The
tokenizer is a Hugging Face one, but this module imports nothing of Hugging Face.
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
    """Returns whether the chat template shows tools and writes calls as `parse_tool_calls` reads them.

    The calls must survive encoding and decoding: a tag that is a special token would be lost.
    """
    try:
        shown = tokenizer.apply_chat_template(OPENING, tools=[TOOL], tokenize=False)
        called = tokenizer.apply_chat_template(CALLED, tools=[TOOL], tokenize=False)
    except Exception:  # templates raise errors of their own for features that they do not support
        return False
    token_ids = tokenizer(called.rpartition(QUESTION)[2])["input_ids"]
    _, calls = parse_tool_calls(tokenizer.decode(token_ids, skip_special_tokens=True))
    return NAME in shown and [call.function.name for call in calls] == [NAME]
