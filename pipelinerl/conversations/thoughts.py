"""Parses thoughts that a model writes as text: `<think>...</think>`. The prompt may contain the beginning."""

from contracts.tool_calls import OPENING, parse_tool_calls, without_thoughts
from pipelinerl.conversations.base import Parsed

BEGIN = "<think>"
END = "</think>"
CLOSING = f"\n{END}\n\n"  # closes a thought that was cut short


def parsed(text: str, begun: bool, with_calls: bool) -> Parsed:
    """Returns the parsed text of an answer.

    begun: True if the prompt ends within a thought. with_calls: True to parse calls.
    """
    whole = BEGIN + text if begun else text
    before, calls = parse_tool_calls(whole) if with_calls else (whole, [])
    malformed = without_thoughts(whole).count(OPENING) if with_calls and not calls else 0
    shown = before.removeprefix(BEGIN) if begun else before
    if before.rfind(BEGIN) > before.rfind(END):
        content, _, thought = before.rpartition(BEGIN)
        return Parsed(shown, content, thought.strip("\n"), True, malformed=malformed)
    thought, end, content = before.rpartition(END)
    if end:
        content = content.lstrip("\n")
    return Parsed(shown, content, _inside(thought), False, calls, malformed)


def _inside(thought: str) -> str:
    return thought.partition(BEGIN)[2].strip("\n") if BEGIN in thought else thought.strip("\n")
