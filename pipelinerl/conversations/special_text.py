"""Prevents text that spells a special token from being tokenized as that token, which would forge a turn.

A problem, a tool's answer or a call may contain the characters `<|im_end|>`. They are separated by a private
character, at which the rendered text is split before it is tokenized. Used by
`TemplateConversations` and other implementations of `Conversations`.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

PRIVATE = range(0xE000, 0xF900)  # Unicode's private use area


class _Added(msgspec.Struct):
    content: str
    special: bool


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_Added]


def special_texts(directory: Path) -> list[str] | None:
    """Returns the special tokens of a model directory, or None if it has no tokenizer.json."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        return None
    added = msgspec.json.decode(file.read_bytes(), type=_TokenizerFile).added_tokens
    return [token.content for token in added if token.special]


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern that matches any of the texts, the longest one first."""
    longest_first = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"\Z.")  # without texts, matches nothing


def private_characters(*used: Any) -> Iterator[str]:
    """Yields characters that are in none of the texts within `used`."""
    taken = set("".join(_texts_in(used)))
    return (character for character in map(chr, PRIVATE) if character not in taken)


def found_in(value: Any, special: re.Pattern[str]) -> str | None:
    """Returns the first special token that a text within `value` spells, or None if there is none."""
    return next((found[0] for text in _texts_in(value) if (found := special.search(text))), None)


def separated(value: Any, special: re.Pattern[str], mark: str) -> Any:
    """Returns `value` with `mark` between the characters of every spelled special token."""
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
