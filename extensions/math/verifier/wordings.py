"""Compares words, ordered names, and letters of multiple choice, which math-verify treats as products."""

import re

from extensions.math.verifier.notations import WORDS
from extensions.math.verifier.verdicts import RIGHT, UNDECIDED, WRONG, Equal

MARKUP = re.compile(WORDS + r"\{([^{}]*)\}")
ITEM = re.compile(r"[^\W\d_]+(?:[-'\s]+[^\W\d_]+)*")
ARTICLE = re.compile(r"^(?:the|an?) (?=\w)")
VARIABLES = frozenset("abcdkmnpqrsuvwxyz")  # factors of a product; other lowercase letters are of words
CAPITALS = re.compile(r"(?<![\\a-zA-Z])[A-Z]{2,}")
DOTS = re.compile(r"\\[lcd]?dots[a-z]?(?![a-zA-Z])|\.\.\.|…")
CHOICE = re.compile(
    r"(?:(?i:option|choice|answer)\s*:?\s*)?"
    r"(?:\((?P<letter>[A-J])\)|(?P<bare>[A-J])(?:[.:)]|$))\s*(?P<rest>.*)",
    re.DOTALL,
)
CONNECTION = re.compile(WORDS + r"\{(?!\s*(?:and|or)\s*\})([^{}]*[a-zA-Z][^{}]*)\}\s*(?=[^\s^}(])")
HIDDEN = re.compile(r"\\(?:[hv]?phantom|[hv]space)(?![a-zA-Z])")
AND = re.compile(r"(?:[,;]\s*|\s)and\s|[,;]")
EQUATED = re.compile(r"=|≡|\\(?:approx|equiv|in)(?![a-zA-Z])")
CAPITAL = re.compile(r"[A-Z]+")
SPACES = re.compile(r"(?:\\[ ,;:]|[\s~])+")
OPENING = re.compile(r"^" + WORDS + r"\{([^{}]*)\}\s*(?=\S)")
FILLER = re.compile(
    r"(?:(?:so|thus|therefore|hence|and|the|we|get|it|final|answer|result|value|solution|is|are)\W*)*", re.I
)


def without_opening(text: str) -> str:
    """Returns the text without an opening such as \\text{The answer is }."""
    found = OPENING.match(text)
    return text[found.end() :] if found and FILLER.fullmatch(found[1].strip()) else text


def hidden(gold: str, given: str, equal: Equal) -> str | None:
    """Leaves answers with invisible parts undecided."""
    return UNDECIDED if HIDDEN.search(given) else None


def chosen(gold: str, given: str, equal: Equal) -> str | None:
    """Compares letters of multiple choice; either side may also have the text of the choice."""
    first, second = (CHOICE.fullmatch(_spoken(text)) for text in (gold, given))
    if not first or not second:
        return RIGHT if first and first["rest"] and equal(first["rest"], given) else None
    if (first["letter"] or first["bare"]) != (second["letter"] or second["bare"]):
        return WRONG
    one_alone = not first["rest"] or not second["rest"]
    alone = one_alone and not re.search(r"\b[A-J]\b", first["rest"] + second["rest"])
    return RIGHT if alone or equal(first["rest"], second["rest"]) else WRONG


def named(gold: str, given: str, equal: Equal) -> str | None:
    """Compares words, and ordered lists of words."""
    first = _items(gold)
    second = _items(given)
    if first is None or second is None or max(map(len, first + second)) == 1 == len(first) == len(second):
        return None
    if first == second or _capitals(gold) == _capitals(given) is not None:
        return RIGHT
    return None if _product(gold) and _product(given) else WRONG


def lettered(gold: str, given: str, equal: Equal) -> str | None:
    """Leaves reordered names of capital letters undecided, such as BAC and ABC, and their equations."""
    first, second = (sorted(CAPITALS.findall(MARKUP.sub(r"\1", text))) for text in (gold, given))
    reordered = first != second and set("".join(first)) == set("".join(second))
    return UNDECIDED if reordered or _equated(gold, given) else None


def dotted(gold: str, given: str, equal: Equal) -> str | None:
    """Compares texts with an ellipsis, which math-verify drops."""
    if not DOTS.search(gold) and not DOTS.search(given):
        return None
    first, second = (DOTS.sub("...", SPACES.sub("", text)) for text in (gold, given))
    if first == second:
        return RIGHT
    return UNDECIDED if second.strip(".,") else WRONG


def connected(gold: str, given: str, equal: Equal) -> str | None:
    """Compares texts with words between formulas, such as 1 \\text{ to } 2, part by part."""
    first = CONNECTION.split(gold)
    second = CONNECTION.split(given)
    if len(first) == len(second) == 1 and gold.count("'") == given.count("'"):
        return None
    words = [[word.lower().strip() for word in parts[1::2]] for parts in (first, second)]
    if words[0] != words[1] or gold.count("'") != given.count("'"):
        return UNDECIDED
    return RIGHT if all(map(equal, first[::2], second[::2])) else WRONG


def _spoken(text: str) -> str:
    return SPACES.sub(" ", MARKUP.sub(r"\1", text)).strip()


def _items(text: str) -> list[str] | None:
    """Returns the words or names that the text lists, or None if it contains anything else."""
    items = [item.strip().strip(".!") for item in AND.split(_spoken(text))]
    if not all(ITEM.fullmatch(item) for item in items):
        return None
    return [ARTICLE.sub("", re.sub(r"[-\s]+", " ", item.lower())) for item in items]


def _capitals(text: str) -> str | None:
    """Returns the capital letters of ABC or A, B, C, or None if the text contains anything else."""
    letters = re.sub(r"[,\s]", "", _spoken(text))
    return letters if re.fullmatch("[A-Z]{2,}", letters) else None


def _equated(gold: str, given: str) -> bool:
    """Returns True if the answer is an equation of capital letters, one of which is the reference."""
    sides = [side.strip() for side in EQUATED.split(_spoken(given))]
    return len(sides) > 1 and _spoken(gold) in sides and all(map(CAPITAL.fullmatch, sides))


def _product(text: str) -> bool:
    """Returns True if letters are more likely variables than a word."""
    few = len(text) == 2 and not set("eiou") & set(text)
    return text.isalpha() and not text.isupper() and (few or VARIABLES.issuperset(text.lower()))
