"""Shows text on a terminal that lacks some of its characters, where printing them would be an error."""

import codecs
import sys

NAME = "pipelinerl.other_characters"
OTHERS = {"–": "-", "—": "-", "−": "-", "→": "->", "…": "...", "×": "x", "≤": "<=", "≥": ">="}


def print_any_text() -> None:
    """Has standard output and standard error show other characters in place of those that they lack."""
    codecs.register_error(NAME, _others)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=NAME)


def printable(text: str) -> str:
    """Returns the text with other characters in place of those that standard output lacks."""
    codecs.register_error(NAME, _others)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, NAME).decode(encoding)


def _others(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(OTHERS.get(character, "?") for character in lacking), error.end
