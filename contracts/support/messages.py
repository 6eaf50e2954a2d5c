"""Formats errors as one line of text for users."""

import difflib
from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import ErrorDetails

MAPPING = "must be a mapping, like {key: value}"
PLAIN = {  # messages by pydantic's error type
    "dict_type": MAPPING,
    "extra_forbidden": "there is no such key",
    "list_type": "must be a list, like [a, b]",
    "model_type": MAPPING,
    "tuple_type": "must be a list, like [a, b]",
}


def one_line(error: BaseException) -> str:
    """Returns the error's complete message on one line. Each problem of a ValidationError names its field."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    return "; ".join(map(problem_line, error.errors()))


def problem_line(problem: ErrorDetails) -> str:
    """Returns one problem of a ValidationError as `field: message`."""
    field = ".".join(str(part) for part in problem["loc"])
    message = PLAIN.get(problem["type"], problem["msg"].removeprefix("Value error, "))
    return f"{field}: {message}" if field else message


def printable(line: str) -> str:
    """Returns the line, with characters escaped that would control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def shown(text: str, most_bytes: int = 2048) -> str:
    """Returns text that is safe to show, its lines as `printable`, cut to so many bytes of UTF-8."""
    lines = "\n".join(printable(line) for line in text[:most_bytes].split("\n"))
    encoded = lines.encode()
    if len(encoded) <= most_bytes and len(text) <= most_bytes:
        return lines
    return encoded[: most_bytes - 4].decode(errors="ignore") + " ..."


def first_line(error: BaseException) -> str:
    """Returns the first line of the error's message, or the name of its class if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def nearest(word: str, words: Iterable[str]) -> str:
    """Returns "; did you mean X?" with the word most similar to `word`, or "" if none is similar."""
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
