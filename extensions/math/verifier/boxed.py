"""Finds the last \\boxed{...} of a text."""

import re

TOKEN = re.compile(r"(?P<box>\\boxed\s*\{)|(?P<brace>\{)|(?P<end>\})|\\.", re.DOTALL)  # not escaped ones


def last_boxed(text: str) -> str | None:
    """Returns the content of the last closed box, or None if there is no box or it is empty.

    The text is read once, so a text that opens thousands of boxes takes no longer."""
    opened: list[int | None] = []  # where the content of a box begins; None for a brace
    last = (0, 0)  # of nested boxes, the outer one closes last
    for token in TOKEN.finditer(text):
        if token["box"]:
            opened.append(token.end())
        elif token["brace"]:
            opened.append(None)
        elif token["end"] and opened and (start := opened.pop()) is not None:
            last = (start, token.start())
    return text[slice(*last)].strip() or None
