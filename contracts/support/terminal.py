"""Replaces characters that the terminal's encoding lacks, which would raise UnicodeEncodeError."""

import codecs
import sys

NAME = "pipelinerl.other_characters"
REPLACEMENTS = {"–": "-", "—": "-", "−": "-", "→": "->", "…": "...", "×": "x", "≤": "<=", "≥": ">="}


def print_any_text() -> None:
    """Makes standard output and standard error replace characters that their encoding lacks."""
    codecs.register_error(NAME, _replace)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=NAME)


def printable(text: str) -> str:
    """Returns the text with the characters replaced that standard output's encoding lacks."""
    codecs.register_error(NAME, _replace)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, NAME).decode(encoding)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(REPLACEMENTS.get(character, "?") for character in lacking), error.end
