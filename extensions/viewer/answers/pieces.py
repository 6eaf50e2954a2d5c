"""Splits tokens into pieces of text, without splitting characters of several tokens. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Piece(NamedTuple):
    """A text, the index of its first token, and the number of its tokens."""

    text: str
    first: int
    count: int


def pieces_of(ids: Sequence[int], tokenizer: Tokenizer | None, begin: int, end: int) -> list[Piece]:
    """Returns the pieces of the tokens from `begin` to `end`. Without a tokenizer a piece is a token's id.

    The joined pieces of all tokens are their text, except an incomplete character at the end.
    """
    if tokenizer is None:
        return [Piece(f"{ids[index]} ", index, 1) for index in range(begin, end)]
    stream = DecodeStream(ids=list(ids[max(begin - CONTEXT, 0) : begin]), skip_special_tokens=False)
    pieces = []
    first = begin
    for index in range(begin, end):
        text = stream.step(tokenizer, ids[index])
        if text is not None:
            pieces.append(Piece(text, first, index + 1 - first))
            first = index + 1
    if first < end:
        pieces.append(
            Piece(tokenizer.decode(list(ids[first:end]), skip_special_tokens=False), first, end - first)
        )
    return pieces


CONTEXT = 8  # tokens before the first one that may change its text
