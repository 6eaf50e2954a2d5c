"""Compares the output of a program with the expected one, in time linear in both.

lines: line by line, without the white space at their ends and without empty last lines.
tokens: word by word, whatever white space is between the words.
floats: word by word; a number is within 1e-6 of an expected one that has a point or an exponent.
json: as JSON values, likewise; true is 1, as in Python.
wrapped: as JSON values; the expected one may be in a list of its own, as in APPS and TACO.
"""

import json
import math
from collections.abc import Callable

TOLERANCE = 1e-6
DEEPEST = 100  # levels of JSON


def lines(output: str, expected: str) -> bool:
    """Returns True if the lines are equal."""
    return _lines(output) == _lines(expected)


def tokens(output: str, expected: str) -> bool:
    """Returns True if the words are equal."""
    return output.split() == expected.split()


def floats(output: str, expected: str) -> bool:
    """Returns True if the words are equal, or numbers that are close to expected ones with a point."""
    ours = output.split()
    theirs = expected.split()
    return len(ours) == len(theirs) and all(map(_equal_words, ours, theirs))


def as_json(output: str, expected: str) -> bool:
    """Returns True if the values are equal, or close where a float is expected."""
    return _equal_values(output, expected, may_be_wrapped=False)


def wrapped(output: str, expected: str) -> bool:
    """Returns True if the value is the expected one, or the only item of an expected list."""
    return _equal_values(output, expected, may_be_wrapped=True)


COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "lines": lines,
    "tokens": tokens,
    "floats": floats,
    "json": as_json,
    "wrapped": wrapped,
}


def _lines(text: str) -> list[str]:
    found = [line.rstrip() for line in text.split("\n")]
    while found and not found[-1]:
        found.pop()
    return found


def _equal_words(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return _is_float(other) and _close(float(one), float(other))
    except ValueError:
        return False


def _is_float(word: str) -> bool:
    return "." in word or "e" in word.lower()


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _equal_values(output: str, expected: str, may_be_wrapped: bool) -> bool:
    if output.strip() == expected.strip():
        return True
    try:
        one = json.loads(output)
        other = json.loads(expected)
        is_alone = may_be_wrapped and isinstance(other, list) and len(other) == 1
        return _equal(one, other, DEEPEST) or (is_alone and _equal(one, other[0], DEEPEST))
    except (ValueError, RecursionError):
        return False


def _equal(one: object, other: object, levels: int) -> bool:
    """Compares JSON values. `other` is the expected one."""
    if not levels:
        return False
    if isinstance(one, list) and isinstance(other, list):
        below = zip(one, other, strict=False)
        return len(one) == len(other) and all(_equal(a, b, levels - 1) for a, b in below)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], levels - 1) for key in one)
    if isinstance(one, int | float) and isinstance(other, float):
        return _near(one, other)
    return one == other


def _near(one: float, other: float) -> bool:
    try:
        return _close(one, other)
    except OverflowError:  # an integer beyond the largest float
        return False
