"""Finds the program in a model's answer."""

import re

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\n`]*)$", re.MULTILINE)
END_OF_THOUGHT = "</think>"
PYTHON = ("", "python", "python3", "py")


def program_in(text: str) -> str | None:
    """Returns the last fenced block of Python, or without a language, after a thought; None if there is none.

    A block that is not closed is none: the answer was cut off.
    """
    text = text.rpartition(END_OF_THOUGHT)[2]
    found = None
    opened: tuple[str, str, int] | None = None
    for fence in FENCE.finditer(text):
        mark = fence[1]
        language = fence[2].strip().partition(" ")[0].lower()
        if opened is None:
            opened = mark, language, fence.end() + 1
        elif mark.startswith(opened[0]) and not language:
            if opened[1] in PYTHON:
                found = text[opened[2] : fence.start()]
            opened = None
    return found
