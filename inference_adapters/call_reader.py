"""Incremental parser that separates the text of a streamed completion from its tool calls."""

from contracts.tool_calls import OPENING, ToolCall, parse_tool_calls


class CallReader:
    """The parser of one completion."""

    def __init__(self) -> None:
        self._text = ""
        self._emitted = 0

    def read_text(self, piece: str, last: bool) -> tuple[str, list[ToolCall]]:
        """Returns the new text that cannot be part of a call. With the last piece, also returns the calls."""
        self._text += piece
        content, calls = parse_tool_calls(self._text) if last else (self._text[: self._call_begins()], [])
        start = self._emitted
        self._emitted = len(content)
        return content[start:], calls

    def _call_begins(self) -> int:
        """Returns the index at which a call begins, or may begin if the text ends with part of the tag."""
        text = self._text
        if OPENING in text:
            return text.index(OPENING)
        could = range(max(0, len(text) - len(OPENING) + 1), len(text) + 1)
        return next(i for i in could if OPENING.startswith(text[i:]))
