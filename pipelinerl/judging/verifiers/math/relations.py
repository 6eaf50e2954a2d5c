"""Compares relations and brackets, where math-verify drops signs and takes pairs for sets."""

import re

from pipelinerl.judging.verifiers.math.intervals import as_intervals
from pipelinerl.judging.verifiers.math.notations import NUMERIC
from pipelinerl.judging.verifiers.math.verdicts import RIGHT, WRONG, Equal

SIGN = r"(?:\\(?:neq?|geq?|leq?|gt|lt|geqslant|leqslant|not\s*=)(?![a-zA-Z])|!=|[<>≠≤≥])"
OPEN_SIGN = re.compile(rf"\s*{SIGN}|.*{SIGN}\s*$", re.DOTALL)
INCOMPLETE = re.compile(r"(?:\\(?:frac|sqrt|cdot|times|div|pm)|[-+*/^_=])\s*$")
ANY_SIGN = re.compile(rf"{SIGN}|=|\\in(?![a-zA-Z])")
BRACED = re.compile(r"\\\{(?P<inside>.*)\\\}", re.DOTALL)
BRACKETED = re.compile(r"[(\[](?P<inside>.*)[)\]]", re.DOTALL)
BUILT = re.compile(r"\\mid|\||:")
INDEX = re.compile(r"_\s*(?:\{[^{}]*\}|\w)|\([^()]*\)|'")
NAME = re.compile(r"(?:\\[a-zA-Z]+\s*|[A-Z]+|[a-zA-Z]|\{[\w\s]*\}|\s)+", re.ASCII)
PRODUCT = re.compile(r"(?<![\\a-zA-Z])[a-z]\s*[a-z](?![a-zA-Z])")
DERIVATIVE = re.compile(r"\\frac\s*\{d\w*\}\s*\{d\w*\}\s*")


def open_relation(gold: str, given: str, equal: Equal) -> str | None:
    """Compares relations without their left side, such as "> 4", and refuses what ends in an operator."""
    if INCOMPLETE.search(given):
        return WRONG
    first = OPEN_SIGN.match(gold)
    second = OPEN_SIGN.match(given)
    if first and second:
        return RIGHT if equal("x" + gold, "x" + given) else WRONG
    if second and not ANY_SIGN.search(gold) and not BRACKETED.fullmatch(gold):
        return WRONG
    return None


def statement(gold: str, given: str, equal: Equal) -> str | None:
    """Refuses an answer that states a falsehood of numbers, as 5 = 4, if no equation is asked for."""
    if ANY_SIGN.search(gold):
        return None
    stated = [side.strip() for side in given.split("=") if NUMERIC.fullmatch(side)]
    rounded = [side.strip() for side in given.split("\\approx")]
    false = not all(equal(stated[0], side) for side in stated[1:])
    return WRONG if false or (len(rounded) > 1 and all(map(str.isdecimal, rounded))) else None


def equation(gold: str, given: str, equal: Equal) -> str | None:
    """Refuses the right-hand side of an equation alone, unless the other side is a name, as in y = 2x."""
    sides = INDEX.sub("", INDEX.sub("", gold)).split("=")
    if len(sides) < 2 or ANY_SIGN.search(given) or re.search(SIGN, gold):
        return None
    name = DERIVATIVE.sub("y", sides[0].replace("\\text", ""))
    if not NAME.fullmatch(name) or PRODUCT.search(name):
        return WRONG
    return RIGHT if len(sides) == 2 and equal(gold.partition("=")[2], given) else None


def inequalities(gold: str, given: str, equal: Equal) -> str | None:
    """Compares inequalities in one variable, also joined by "or", as the intervals that they mean."""
    first, variable = as_intervals(gold)
    second, other = as_intervals(given)
    if first == gold and second == given:
        return None
    same = variable == other or not variable or not other
    return RIGHT if same and equal(first, second) else WRONG


def bracketed(gold: str, given: str, equal: Equal) -> str | None:
    """Refuses a set for a pair or an interval, and the reverse."""
    for one, other in ((gold, given), (given, gold)):
        if _is_set(one) and (pair := BRACKETED.fullmatch(other)) and "," in pair["inside"]:
            return WRONG
    return None


def _is_set(text: str) -> bool:
    found = BRACED.fullmatch(text)
    listed = found and "," in found["inside"] and not BUILT.search(found["inside"])
    return bool(listed) or text.startswith("\\pm")
