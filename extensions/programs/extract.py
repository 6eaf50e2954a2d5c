"""Finds the program in a model's answer, in time linear in its length."""

import re
from collections.abc import Iterator, Sequence

MARKS = "`~"
FEWEST = 3  # characters of a fence
DEEPEST = 3  # spaces before a fence
END_OF_THOUGHT = "</think>"
NAMES = {
    "python": re.compile(r"\{?\.?py(thon)?[\d.]*\b.*", re.IGNORECASE),
    "cpp": re.compile(r"\{?\.?(c\+\+|cpp|cc|cxx)[\d.]*(\W.*)?$", re.IGNORECASE),
}


def program_in(text: str, languages: Sequence[str]) -> tuple[str, str] | None:
    """Returns language and content of the last fenced block after a thought; None if there is none.

    A block without a language counts as the first of the languages if none names one of them. A block that is
    not closed is none, because the answer was cut off.
    """
    blocks = list(_blocks(text.rpartition(END_OF_THOUGHT)[2]))
    named = [
        (language, program)
        for name, program in blocks
        for language in languages
        if NAMES[language].match(name)
    ]
    unnamed = [(languages[0], program) for name, program in blocks if not name]
    return next(reversed(named or unnamed), None)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yields language and content of each closed block. Content loses the indentation of its fence."""
    opened: tuple[str, str, int] | None = None
    content: list[str] = []
    for line in text.split("\n"):
        indent, mark, rest = _fence_of(line)
        if opened is None:
            if mark and not (mark[0] == "`" and "`" in rest):
                opened = (mark, rest.strip(), indent)
                content = []
        elif mark.startswith(opened[0]) and not rest.strip():
            yield opened[1], "".join(content)
            opened = None
        else:
            spaces = len(line) - len(line.lstrip(" "))
            content.append(line[min(opened[2], spaces) :] + "\n")


def _fence_of(line: str) -> tuple[int, str, str]:
    """Returns indentation, fence and rest of a line; no fence if it has none."""
    line = line.rstrip("\r")
    unindented = line.lstrip(" ")
    indent = len(line) - len(unindented)
    if indent > DEEPEST or unindented[:1] not in tuple(MARKS):
        return indent, "", line
    rest = unindented.lstrip(unindented[0])
    mark = unindented[: len(unindented) - len(rest)]
    return (indent, mark, rest) if len(mark) >= FEWEST else (indent, "", line)
