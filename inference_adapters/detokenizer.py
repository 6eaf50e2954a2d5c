"""Incremental detokenizer for streamed completions."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Decodes a completion in pieces, whose concatenation is the text of all its tokens.

    A token may be part of a character, and its text may depend on the token before it. So each piece is the
    difference between two decodings of a window that starts at the previous piece. If a window ends within a
    character (decoded to U+FFFD), the piece is delayed until the character is complete.
    """

    def __init__(self, decode: Decode):
        self._decode = decode
        self._settled: list[int] = []  # tokens of the last piece: context of the next
        self._open: list[int] = []  # tokens whose text has not been returned yet

    def decode_next(self, token_ids: Sequence[int], last: bool) -> str:
        """Returns the new text, which is empty if the tokens end within a character and `last` is False."""
        self._open += token_ids
        before = self._decode(self._settled)
        after = self._decode(self._settled + self._open)
        if after.endswith("\ufffd") and not last:
            return ""
        self._settled = self._open or self._settled
        self._open = []
        return after[len(before) :]
