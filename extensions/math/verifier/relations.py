"""Compares relations and brackets, of which math-verify drops signs and confuses pairs with sets."""

import re

from extensions.math.verifier.intervals import as_intervals
from extensions.math.verifier.notations import NUMERIC
from extensions.math.verifier.verdicts import RIGHT, UNDECIDED, WRONG, Equal

SIGN = r"(?:\\(?:neq?|geq?|leq?|gt|lt|geqslant|leqslant|not\s*=)(?![a-zA-Z])|!=|[<>≠≤≥])"
OPEN_SIGN = re.compile(rf"\s*{SIGN}|.*{SIGN}\s*$", re.DOTALL)
INCOMPLETE = re.compile(r"(?:\\(?:frac|sqrt|cdot|times|div|pm)|[-+*/^_=])\s*$")
ANY_SIGN = re.compile(rf"{SIGN}|=|\\in(?![a-zA-Z])")
BRACED = re.compile(r"\\\{(?P<inside>.*)\\\}", re.DOTALL)
BRACKETED = re.compile(r"[(\[](?P<inside>.*)[)\]]", re.DOTALL)
COLUMN = re.compile(r"\\begin\{[pb]?matrix\}([^&]*)\\end\{[pb]?matrix\}", re.DOTALL)
ASSIGNED = re.compile(r"\(([a-z](?:,[a-z])+)\)=[(\\{].*", re.DOTALL)
NEW_ROW = "\\\\"
EQUAL = re.compile(r"=|\\equiv(?![a-zA-Z])|≡")
SEVERAL = re.compile(rf"[,;]|\\\\|\\(?:text|quad|qquad)|\band\b|\bor\b|{SIGN}")
DECIMAL = re.compile(r"-?\d*\.?\d+(?:\\?%|\\ldots|\.\.\.)?")
MATRIX = re.compile(r"\\(?:begin|end)\{[pb]?matrix\}|\\[\\{}]|[&\[\]]")
NO_NAME = re.compile(rf"{SIGN}|\\(?:text|neg|lnot|not|cancel)|\{{")
EVENT = re.compile(r"(?<=[a-zA-Z])\([^()]*=[^()]*\)")  # of P(X = 1)
BUILT = re.compile(r"\\mid|\||:")
INDEX = re.compile(r"_\s*(?:\{[^{}]*\}|\w)|\([^()]*\)|'")
NAME = re.compile(r"(?:\\[a-zA-Z]++|[a-zA-Z]|\{[\w\s]*\}|\s)+", re.ASCII)
PRODUCT = re.compile(r"(?<![\\a-zA-Z])[a-z]\s*[a-z](?![a-zA-Z])")
DERIVATIVE = re.compile(r"\\frac\s*\{d\w*\}\s*\{d\w*\}\s*")


def open_relation(gold: str, given: str, equal: Equal) -> str | None:
    """Compares relations without a left side, such as "> 4", and refuses answers that end in an operator."""
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
    """Refuses an answer with a false equation of numbers, such as 5 = 4, if the reference is no relation."""
    if ANY_SIGN.search(gold) or "\\approx" in gold:
        return None
    stated = [side.strip() for side in EQUAL.split(EVENT.sub("", given)) if _is_numeric(side)]
    exact, *rounded = (side.strip(" {}()") for side in given.split("\\approx"))
    false = not all(equal(stated[0], side) for side in stated[1:])
    if false or (exact.isdecimal() and any(map(str.isdecimal, rounded))):
        return WRONG
    certain = all(DECIMAL.fullmatch(side) or equal(exact, side) for side in rounded)
    return None if certain else UNDECIDED


def chained(gold: str, given: str, equal: Equal) -> str | None:
    """Leaves y = 2x = 3x undecided, of which math-verify uses only the last side."""
    sides = EQUAL.split(given)[1:]
    several = len(sides) < 2 or SEVERAL.search(given) or len(sides) < len(EQUAL.split(gold))
    if several or NUMERIC.fullmatch(gold):
        return None
    return None if all(equal(sides[0], side) for side in sides[1:]) else UNDECIDED


def equation(gold: str, given: str, equal: Equal) -> str | None:
    """Refuses only the right-hand side of an equation, unless its left side is a name, such as in y = 2x."""
    sides = INDEX.sub("", INDEX.sub("", gold)).split("=")
    if len(sides) < 2 or ANY_SIGN.search(given) or re.search(SIGN, gold):
        return None
    name = DERIVATIVE.sub("y", sides[0].replace("\\text", ""))
    if not NAME.fullmatch(name) or PRODUCT.search(name):
        return WRONG
    return RIGHT if len(sides) == 2 and equal(gold.partition("=")[2], given) else None


def value_of(gold: str, given: str) -> str | None:
    """Returns the value in an answer such as \\angle ABC = 40^\\circ, or None for other answers."""
    name, sign, value = INDEX.sub("", given).partition("=")
    if not sign or ANY_SIGN.search(gold) or ANY_SIGN.search(value) or NO_NAME.search(name):
        return None
    return given.rpartition("=")[2].strip() if NAME.fullmatch(name) else None


def assigned(gold: str, given: str, equal: Equal) -> str | None:
    """Leaves (y, x) = (1, 2) undecided if the reference does not give the order."""
    found = ASSIGNED.fullmatch(re.sub(r"\s", "", given))
    if not found or "=" in gold:
        return None
    names = found[1].split(",")
    return UNDECIDED if names != sorted(names) else None


def repeated(gold: str, given: str, equal: Equal) -> str | None:
    """Compares lists that repeat a number, which math-verify treats as sets."""
    first, second = ([item.strip() for item in text.split(",")] for text in (gold, given))
    if len(first) != len(second) or not all(map(NUMERIC.fullmatch, first + second)):
        return None
    if re.search(r"[()]", gold + given) or len(set(first)) == len(first):
        return None
    left = list(second)
    for item in first:
        same = [other for other in left if equal(item, other)]
        if not same:
            return WRONG
        left.remove(same[0])
    return RIGHT


def columns(gold: str, given: str, equal: Equal) -> str | None:
    """Compares a column with a tuple of the same vector."""
    first, second = (COLUMN.fullmatch(text) for text in (gold, given))
    if first and _is_group(given):
        return RIGHT if equal(_as_tuple(first[1]), given) else WRONG
    if second and _is_group(gold):
        return RIGHT if equal(gold, _as_tuple(second[1])) else WRONG
    return None


def inequalities(gold: str, given: str, equal: Equal) -> str | None:
    """Compares inequalities in one variable, also joined by "or", as intervals."""
    first, variable = as_intervals(gold)
    second, other = as_intervals(given)
    if first == gold and second == given:
        return None
    same = variable == other or not variable or not other
    return RIGHT if same and equal(first, second) else WRONG


def bracketed(gold: str, given: str, equal: Equal) -> str | None:
    """Refuses a set in place of a pair or an interval, and the reverse."""
    for one, other in ((gold, given), (given, gold)):
        if _is_set(one) and _is_group(other):
            return WRONG
    return None


def _is_set(text: str) -> bool:
    found = BRACED.fullmatch(text)
    listed = found and "," in found["inside"] and not BUILT.search(found["inside"])
    return bool(listed) or text.startswith("\\pm")


def _is_group(text: str) -> bool:
    """Returns True if the text is one pair, tuple or interval, and not a list of them."""
    found = BRACKETED.fullmatch(text)
    if not found or "," not in found["inside"]:
        return False
    depth = 0
    for sign in found["inside"]:
        depth += (sign in "([") - (sign in ")]")
        if depth < 0:
            return False
    return True


def _as_tuple(column: str) -> str:
    return f"({column.replace(NEW_ROW, ',')})"


def _is_numeric(side: str) -> bool:
    """Returns True if the side of an equation is a number, or a tuple or matrix of numbers."""
    return NUMERIC.fullmatch(MATRIX.sub("", side)) is not None
