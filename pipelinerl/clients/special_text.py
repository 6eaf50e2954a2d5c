"""Keeps text that spells a special token from becoming that token, which would forge a turn.

A problem, an answer of a tool, or a call that the model wrote may contain `<|im_end|>`. A tokenizer reads the
characters as the token. So they are separated by a private character, at which the rendered text is cut
before it is tokenized. `ChatTemplate` uses this module.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

PRIVATE = range(0xE000, 0xF900)  # characters to which Unicode gives no meaning


class _Added(msgspec.Struct):
    content: str
    special: bool


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_Added]


def special_texts(directory: Path) -> list[str] | None:
    """Returns the special tokens of a model directory, or None where only its tokenizer itself knows them."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        return None
    added = msgspec.json.decode(file.read_bytes(), type=_TokenizerFile).added_tokens
    return [token.content for token in added if token.special]


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Returns what finds any of the texts, the longest at each place."""
    longest_first = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"\Z.")  # of no texts, nothing


def private_characters(*used: Any) -> Iterator[str]:
    """Yields characters that occur in none of the texts within `used`."""
    taken = set("".join(_texts_in(used)))
    return (character for character in map(chr, PRIVATE) if character not in taken)


def found_in(value: Any, special: re.Pattern[str]) -> str | None:
    """Returns the first special token that a text within `value` spells, or None."""
    return next((found[0] for text in _texts_in(value) if (found := special.search(text))), None)


def separated(value: Any, special: re.Pattern[str], mark: str) -> Any:
    """Returns `value` with `mark` between the characters of each special token that a text within spells."""
    if isinstance(value, str):
        return special.sub(lambda found: mark.join(found[0]), value)
    if isinstance(value, list):
        return [separated(one, special, mark) for one in value]
    if isinstance(value, dict):
        return {separated(key, special, mark): separated(one, special, mark) for key, one in value.items()}
    return value


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts_in([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts_in(one)
