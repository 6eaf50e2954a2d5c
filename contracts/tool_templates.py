"""Whether a model can be given tools: asked of its chat template, by rendering.

Called by engines when they declare their capabilities, and before a run that needs tools. A tokenizer is
Hugging Face's; nothing of that is imported here.
"""

from typing import Any

from contracts.tool_calls import parse_tool_calls

NAME, QUESTION = "a_tool_of_nobody", "a question that nobody asks"
TOOL = {"type": "function", "function": {"name": NAME, "description": "", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": NAME, "arguments": {}}}
OPENING = [{"role": "user", "content": QUESTION}]
CALLED = [*OPENING, {"role": "assistant", "content": "", "tool_calls": [CALL]}]


def knows_tools(tokenizer: Any) -> bool:
    """Its template shows tools to the model, and writes a call as `parse_tool_calls` reads it, also after it
    was encoded and decoded: a tag that is a special token would be lost."""
    try:
        shown = tokenizer.apply_chat_template(OPENING, tools=[TOOL], tokenize=False)
        called = tokenizer.apply_chat_template(CALLED, tools=[TOOL], tokenize=False)
    except Exception:  # a template refuses what it does not know with errors of its own
        return False
    token_ids = tokenizer(called.rpartition(QUESTION)[2])["input_ids"]
    _, calls = parse_tool_calls(tokenizer.decode(token_ids, skip_special_tokens=True))
    return NAME in shown and [call.function.name for call in calls] == [NAME]
