"""Compares integers whose subscript is their base, which math-verify drops."""

import re

from extensions.math.verifier.verdicts import RIGHT, UNDECIDED, WRONG, Equal

BASED = re.compile(r"([0-9A-Za-z]+)(?:_\{?(\d{1,2}|\\text\s*\{[^{}]*\})\}?)?")
SUBSCRIPTED = re.compile(r"[\d)]\s*\}?\s*_")


def compared(gold: str, given: str, equal: Equal) -> str | None:
    """Returns the verdict, or None if neither has a base. If only one has a base, the digits are compared."""
    first, second = (BASED.fullmatch(text.replace("\\,", "").replace(" ", "")) for text in (gold, given))
    if not first or not second or not (first[2] or second[2]):
        return None
    if not first[2] or not second[2] or first[2] == second[2]:
        return RIGHT if first[1].lower() == second[1].lower() else WRONG
    try:
        return RIGHT if int(first[1], int(first[2])) == int(second[1], int(second[2])) else WRONG
    except ValueError:
        return WRONG


def subscripted(gold: str, given: str, equal: Equal) -> str | None:
    """Leaves numbers with other subscripts undecided, which math-verify drops too."""
    same = re.sub(r"[\s{}]", "", gold) == re.sub(r"[\s{}]", "", given)
    return UNDECIDED if not same and (SUBSCRIPTED.search(gold) or SUBSCRIPTED.search(given)) else None
