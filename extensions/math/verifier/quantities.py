"""Compares quantities with their units, which math-verify drops.

A missing unit is no difference, because the problem may name it. Known units are converted. If the numbers
are equal and other words differ, the answer is undecided without the problem.
"""

import re
from functools import partial
from typing import NamedTuple

from extensions.math.verifier import percentages
from extensions.math.verifier.notations import NUMBER_WORDS, NUMERIC, WORDS
from extensions.math.verifier.units import Unit, unit_of
from extensions.math.verifier.verdicts import RIGHT, UNDECIDED, WRONG, Equal
from extensions.math.verifier.wordings import VARIABLES

SPACE = r"(?:\\[ ,;:]|[~\s])*"
POWER = r"(?:\^\s*\{?\s*([23])\s*\}?)?"
WORDED = re.compile(rf"{SPACE}{WORDS}\{{\s*([^{{}}]*?){POWER}\s*\}}\s*{POWER}$")
BARE = re.compile(rf"(?<=[\d}}]){SPACE}([a-zA-Z]+(?:[\s/.]+[a-zA-Z]+){{0,4}})\s*{POWER}()$")
DEGREE = re.compile(SPACE + r"(?:\^\s*\{?\s*\\circ\s*\}?|\\degree|°)$")
DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree|°)")
CURRENCY = re.compile(r"^([-+]?)\s*(?:\\?\$|\\text\s*\{\s*\\?\$\s*\})")
NO_UNIT = re.compile(r"(?:(?:square|sq\.?|cubic|cu\.?)\s+)?units?(?:\s+(?:squared|cubed))?")
HEDGES = re.compile(
    r"\b(?:no[tr]?|any\w*|all|others?|except|n?either|maybe|perhaps|but|or|than|over|under|above|below|least|most"
    r"|about|around|approximately|nearly|less|more|fewer|greater|between|wrong|false|incorrect|up to"
    r"|if|when|unless|only|is|isn't|was|can\w*|plus|minus|times\s|divided|point|and|power|root|factorial|k"
    r"|pairs?|couples?|hal(?:f|ves)|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths?"
    rf"|tens|hundreds?|lakhs?|crores?|{'|'.join(NUMBER_WORDS)})\b|^(?:squared|cubed)\b|^[abcdefijknopqrtuvwxyz]$|\d",
    re.IGNORECASE,
)


class Quantity(NamedTuple):
    """A value in LaTeX, and its unit. words: the unit without its exponent `power`; may be empty."""

    value: str
    words: str = ""
    power: int = 1

    @property
    def unit(self) -> Unit | None:
        return unit_of(self.words, self.power)


def compared(gold: str, given: str, equal: Equal) -> str | None:
    """Returns the verdict on two quantities, or None if neither has a unit."""
    first, second = _both(gold, given)
    if first.value.rstrip().endswith("%") or second.value.rstrip().endswith("%"):
        equal = partial(_equal_shares, equal)
    if (first.words and _is_share(second)) or (second.words and _is_share(first)):
        return WRONG
    if first.words and second.words:
        return _of_two(first, second, equal)
    if not first.words and not second.words:
        dropped = (first.value, second.value) != (gold, given)
        return RIGHT if dropped and equal(first.value, second.value) else None
    if not equal(first.value, second.value):
        return None if _degrees(first) or _degrees(second) else WRONG  # the other side may be in radians
    in_radians = "\\pi" in first.value and (_degrees(first) or _degrees(second))
    return UNDECIDED if in_radians or _hedged(first.words + second.words) else RIGHT


def _equal_shares(equal: Equal, gold: str, given: str) -> bool:
    found = percentages.compared(gold, given, equal)
    return equal(gold, given) if found is None else found == RIGHT


def angles(gold: str, given: str, equal: Equal) -> str | None:
    """Compares formulas with degrees, converted to radians. math-verify would drop the degree sign."""
    first, second = (DEGREES.sub(r"{(\1 \\cdot \\frac{\\pi}{180})}", text) for text in (gold, given))
    if first == gold and second == given:
        return None
    return RIGHT if equal(first, second) else WRONG


def _of_two(gold: Quantity, given: Quantity, equal: Equal) -> str:
    known = gold.unit, given.unit
    if known[0] and known[1]:
        return _converted(gold.value, known[0], given.value, known[1], equal)
    if not equal(gold.value, given.value):
        return WRONG
    return RIGHT if _letters(gold) == _letters(given) else UNDECIDED


def _converted(gold: str, of_gold: Unit, given: str, of_given: Unit, equal: Equal) -> str:
    if of_gold.dimension != of_given.dimension:
        return WRONG
    share = of_given.factor / of_gold.factor
    value = given if share == 1 else rf"({given}) \cdot \frac{{{share.numerator}}}{{{share.denominator}}}"
    return RIGHT if equal(gold, value) else WRONG


def _both(gold: str, given: str) -> tuple[Quantity, Quantity]:
    """Returns both quantities. A letter without markup is a unit only if the other side has it too."""
    first = _quantity(gold)
    second = _quantity(given)
    return _quantity(gold, second.words), _quantity(given, first.words)


def _quantity(text: str, of_other: str = "") -> Quantity:
    money = CURRENCY.sub(r"\1", text)
    if money != text:
        return Quantity(money, "dollar")
    if (found := DEGREE.search(text)) and NUMERIC.fullmatch(text[: found.start()]):
        return Quantity(text[: found.start()], "degree")
    if (found := WORDED.search(text)) and text[: found.start()].strip():
        words = "" if NO_UNIT.fullmatch(found[1].lower()) else found[1]
        return Quantity(text[: found.start()], words, int(found[2] or found[3] or 1))
    if (found := BARE.search(text)) and NUMERIC.fullmatch(text[: found.start()]):
        bare = Quantity(text[: found.start()], found[1], int(found[2] or 1))
        if _is_word(bare) or found[1].lower() == of_other.lower():
            return bare
    return Quantity(text)


def _is_word(quantity: Quantity) -> bool:
    words = quantity.words
    known = quantity.unit is not None
    return len(words) > 1 and (known or (len(words) > 2 and not VARIABLES.issuperset(words)))


def _degrees(quantity: Quantity) -> bool:
    unit = quantity.unit
    return unit is not None and unit.dimension == "angle"


def _is_share(quantity: Quantity) -> bool:
    return not quantity.words and quantity.value.rstrip().endswith("%")


def _hedged(words: str) -> bool:
    return HEDGES.search(words) is not None


def _letters(quantity: Quantity) -> tuple[str, int]:
    return re.sub(r"[^a-z/]", "", quantity.words.lower()).removesuffix("s"), quantity.power
