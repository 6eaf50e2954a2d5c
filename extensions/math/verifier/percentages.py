"""Compares percentages: 50% equals 0.5, and also 50, because the problem may ask for a percentage."""

import re

from extensions.math.verifier.verdicts import RIGHT, WRONG, Equal

PERCENT = re.compile(r"(?:\\[ ,;]|\s)*\\?%\s*$")
LARGE = re.compile(r"-?(?:\d{2,}|[2-9])(?:\.\d+)?")  # too large for a share, so a percentage


def compared(gold: str, given: str, equal: Equal) -> str | None:
    """Returns the verdict, or None if neither side is a percentage."""
    first = PERCENT.sub("", gold)
    second = PERCENT.sub("", given)
    if first == gold and second == given:
        return None
    if first != gold and second != given:
        return RIGHT if equal(first, second) else WRONG
    plain, percentage = (second, first) if second == given else (first, second)
    if equal(plain, f"\\frac{{{percentage}}}{{100}}"):
        return RIGHT
    return RIGHT if LARGE.fullmatch(plain.strip()) and equal(first, second) else WRONG
