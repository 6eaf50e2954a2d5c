"""Converts inequalities in one variable, and sets defined by them, to intervals."""

import re

SIGNS = {"<": "<", ">": ">", "\\lt": "<", "\\gt": ">", "≤": "<=", "≥": ">=", "<=": "<=", ">=": ">="}
SIGNS |= {f"\\{name}": "<=" for name in ("le", "leq", "leqslant")}
SIGNS |= {f"\\{name}": ">=" for name in ("ge", "geq", "geqslant")}
SPLIT = re.compile(r"\s*(<=|>=|[<>≤≥]|\\(?:leqslant|geqslant|leq|geq|le|ge|lt|gt)(?![a-zA-Z]))\s*")
OR = re.compile(
    r"\s*(?:,\s*)?(?:\\text\s*\{\s*or\s*\}|(?<![a-zA-Z])or(?![a-zA-Z])|\\(?:lor|vee|cup)(?![a-zA-Z]))\s*"
)
AND = re.compile(
    r"\s*(?:,\s*)?(?:\\text\s*\{\s*and\s*\}|(?<![a-zA-Z])and(?![a-zA-Z])|\\(?:land|wedge)(?![a-zA-Z]))\s*"
)
REAL = r"(?:\\in\s*(?:\\mathbb\s*\{?R\}?|\\R)\s*)?"
BUILT = re.compile(rf"\\\{{\s*[a-z]\s*{REAL}(?:\\mid|\\vert|\||:)\s*(?P<condition>.*)\\\}}", re.DOTALL)
FLIPPED = str.maketrans("<>", "><")


def as_intervals(text: str) -> tuple[str, str]:
    """Returns the union of intervals of inequalities joined by "and" and "or", and their variable.

    The variable is empty for a set. Other texts are returned unchanged, with an empty variable.
    """
    built = BUILT.fullmatch(text)
    condition = built["condition"].strip() if built else text
    pieces = [_common(piece) for piece in OR.split(condition)]
    known = [piece for piece in pieces if piece is not None]
    variables = set(re.findall("(?<![a-zA-Z\\\\])[a-z](?![a-zA-Z])", condition))
    if len(known) < len(pieces) or len(variables) > 1:
        return text, ""
    union = known[0] if len(known) == 1 else " \\cup ".join(map(_in_parentheses, known))
    return union, "" if built else variables.pop()


def _common(text: str) -> str | None:
    """Returns the intersection of inequalities joined by "and", or None if a part is no inequality."""
    intervals = [_interval(piece) for piece in AND.split(text)]
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return None
    return " \\cap ".join(known)


def _in_parentheses(intervals: str) -> str:
    return f"({intervals})" if "\\cap" in intervals else intervals


def _interval(text: str) -> str | None:
    """Returns the interval of an inequality such as "x < 3" or "1 < x \\le 2", or None for another text."""
    parts = SPLIT.split(text.strip())
    terms = parts[::2]
    signs = [SIGNS[sign] for sign in parts[1::2]]
    if len(terms) == 2 and re.fullmatch("[a-z]", terms[1]):
        terms = terms[::-1]
        signs = [signs[0].translate(FLIPPED)]
    if len(terms) == 2 and re.fullmatch("[a-z]", terms[0]):
        return _half(signs[0], terms[1])
    if len(terms) == 3 and re.fullmatch("[a-z]", terms[1]) and signs[0][0] == signs[1][0]:
        low, high = (0, 2) if signs[0][0] == "<" else (2, 0)
        below, above = signs if low == 0 else signs[::-1]
        return f"{'[' if '=' in below else '('}{terms[low]}, {terms[high]}{']' if '=' in above else ')'}"
    return None


def _half(sign: str, bound: str) -> str:
    if sign[0] == "<":
        return f"(-\\infty, {bound}{']' if '=' in sign else ')'}"
    return f"{'[' if '=' in sign else '('}{bound}, \\infty)"
