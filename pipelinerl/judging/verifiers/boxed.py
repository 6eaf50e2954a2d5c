"""The last \\boxed{...} of a text."""

import re

TOKEN = re.compile(r"(?P<box>\\boxed\s*\{)|(?P<brace>\{)|(?P<end>\})|\\.", re.DOTALL)  # not escaped ones


def last_boxed(text: str) -> str | None:
    """What stands in the last box that is closed; None where there is none, or nothing in it.

    One pass: a text that opens thousands of boxes costs no more than its length."""
    opened: list[int | None] = []  # where the content of a box begins; None for a brace
    last = (0, 0)
    for token in TOKEN.finditer(text):
        if token["box"]:
            opened.append(token.end())
        elif token["brace"]:
            opened.append(None)
        elif token["end"] and opened and (start := opened.pop()) is not None:
            last = max(last, (start, token.start()))
    return text[slice(*last)].strip() or None
