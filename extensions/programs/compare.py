"""Compares the output of a program with the expected one, in time linear in both.

lines: line by line, without the white space at their ends and without empty last lines.
tokens: word by word, whatever white space is between the words.
floats: word by word; numbers are equal within 1e-6, absolute or relative.
json: as JSON values, of which floats are equal within 1e-6.
wrapped: as JSON values; the expected one may be in a list of its own, as in APPS and TACO.
"""

import json
import math
from collections.abc import Callable

TOLERANCE = 1e-6
DEEPEST = 100  # levels of JSON


def lines(output: str, expected: str) -> bool:
    return _lines(output) == _lines(expected)


def tokens(output: str, expected: str) -> bool:
    return output.split() == expected.split()


def floats(output: str, expected: str) -> bool:
    ours = output.split()
    theirs = expected.split()
    return len(ours) == len(theirs) and all(map(_equal_words, ours, theirs))


def as_json(output: str, expected: str) -> bool:
    try:
        return _equal(json.loads(output), json.loads(expected), DEEPEST)
    except (ValueError, RecursionError):
        return False


def wrapped(output: str, expected: str) -> bool:
    try:
        inner = json.loads(expected)
    except (ValueError, RecursionError):
        return False
    is_alone = isinstance(inner, list) and len(inner) == 1
    return as_json(output, expected) or (is_alone and as_json(output, json.dumps(inner[0])))


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
        return _close(float(one), float(other))
    except ValueError:
        return False


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _equal(one: object, other: object, levels: int) -> bool:
    if not levels:
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            _equal(a, b, levels - 1) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key], levels - 1) for key in one)
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) or isinstance(other, float):
        return isinstance(one, int | float) and isinstance(other, int | float) and _near(one, other)
    return type(one) is type(other) and one == other


def _near(one: float, other: float) -> bool:
    try:
        return _close(one, other)
    except OverflowError:  # an integer beyond the largest float
        return False
