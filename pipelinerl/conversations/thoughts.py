"""Parses thoughts that a model writes as text: `<think>...</think>`. The prompt may contain the beginning."""

from contracts.tool_calls import OPENING, parse_tool_calls, without_thoughts
from pipelinerl.conversations.base import Parsed
from pipelinerl.conversations.rendering import BEGIN, END

CLOSING = f"\n{END}\n\n"  # closes a thought that was cut short


def parsed(text: str, begun: bool, with_calls: bool) -> Parsed:
    """Returns the parsed text of an answer. A thought stands at its beginning, or is none.

    begun: True if the prompt ends within a thought. with_calls: True to parse calls.
    """
    whole = BEGIN + text if begun else text
    before, calls = parse_tool_calls(whole) if with_calls else (whole, [])
    malformed = without_thoughts(whole).count(OPENING) if with_calls and not calls else 0
    shown = before.removeprefix(BEGIN) if begun else before
    if not before.lstrip().startswith(BEGIN):
        return Parsed(shown, before, calls=calls, malformed=malformed)
    thought, end, content = before.partition(BEGIN)[2].partition(END)
    if not end:
        return Parsed(shown, "", thought.strip("\n"), True, malformed=malformed)
    return Parsed(shown, content.lstrip("\n"), thought.strip("\n"), False, calls, malformed)
