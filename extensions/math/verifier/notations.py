"""Rewrites notations that math-verify misreads: digit groups, exponents, mixed numbers and others."""

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

WORDS = r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s*"
NUMERIC = re.compile(r"(?:[-+*/^\s\d.,{}()]|\\(?:frac|sqrt|pi|cdot|times)(?![a-zA-Z]))+")
Rewriting = Callable[[re.Match[str]], str]


def rewritten(text: str) -> str:
    """Returns a LaTeX text of the same meaning, in notations that math-verify reads."""
    text = text.strip()
    for pattern, replacement in (*MARKUP, *LANGUAGE, *BRACKETS, *NUMBERS):
        text = pattern.sub(replacement, text)
    return text.strip()


def _repeating(found: re.Match[str]) -> str:
    """Returns the fraction of a repeating decimal: 0.1\\overline{6} is 16/90 less 1/90."""
    whole, fixed, period = found.groups()
    scale = 10 ** len(fixed)
    value = Fraction(int(whole + fixed), scale) + Fraction(int(period), (10 ** len(period) - 1) * scale)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _mixed(found: re.Match[str]) -> str:
    whole, numerator, denominator = (int(group) for group in found.groups())
    return f"\\frac{{{whole * denominator + numerator}}}{{{denominator}}}"


def _joined(found: re.Match[str]) -> str:
    return re.sub(r"\D", "", found[0])


def _compiled(*pairs: tuple[str, str | Rewriting]) -> list[tuple[re.Pattern[str], str | Rewriting]]:
    return [(re.compile(pattern, re.ASCII), replacement) for pattern, replacement in pairs]


def _magnitude(found: re.Match[str]) -> str:
    return f"{{{found[1]} \\times {MAGNITUDES[found[2].lower()]}}}\\text{{{found[3] or ''}}}"


def _number_word(found: re.Match[str]) -> str:
    return str(NUMBER_WORDS.index(found[1].lower())) if found[1].lower() in NUMBER_WORDS else found[0]


def _raised(found: re.Match[str]) -> str:
    return f"^{{{unicodedata.normalize('NFKC', found[0])}}}"


NUMBER_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
MAGNITUDES = {"dozen": "12", "hundred": "100", "thousand": "10^3"}
MAGNITUDES |= {"million": "10^6", "billion": "10^9", "trillion": "10^{12}"}
MAGNITUDE = "|".join(MAGNITUDES)

MARKUP = _compiled(
    (r"(?<!\\)\\$|^(?:\\\s|~)+|(?:(?<!\\)\\\s|~)+$", ""),  # spaces around it
    (r"\\(?:bf|rm|it|tiny|small|normalsize|large|Large|LARGE|huge|Huge)(?![a-zA-Z])\s*", ""),
    (r"\\(?:mathbf|boldsymbol|bm)\s*\{\s*([a-zA-Z])\s*\}(?=\s*=)", r"\1"),
    (r"[\u2212\u2013]", "-"),
    (r"\u00d7", r"\\times "),
    (r"\\(?:displaystyle|textstyle|!|left(?![a-zA-Z])|right(?![a-zA-Z]))\s*", ""),
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\lbrace(?![a-zA-Z])", r"\\{"),
    (r"\\rbrace(?![a-zA-Z])", r"\\}"),
    (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
    (r"\\\\\s*\\end\{", r"\\end{"),
    (r"(\\\\)\s*\[-?\d*\.?\d+\s*[a-z]{2}\]", r"\1"),
    (r"(?:\\(?:to|(?:long)?rightarrow)(?![a-zA-Z])|→)\s*", r"\\to "),
    (r"(?:\\(?:approxeq|simeq|cong)(?![a-zA-Z])|[≈≃≅])", r"\\approx "),
    (r"^\\(?:approx|therefore)(?![a-zA-Z])", ""),
    (r"\\textdollar(?![a-zA-Z])", r"\\$"),
    (r"\\(?:text)?color\s*\{[a-zA-Z]*\}", ""),
    (r"\\(?:boxed|fbox|underline|mathsf|mathtt)\s*(?=\{)", ""),
    (r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+", _raised),
    (r"√\s*(\d+)", r"\\sqrt{\1}"),
    (r"(?<=[\w})\]])\.$", ""),
)
LANGUAGE = _compiled(
    (rf"^(?:{WORDS}\{{)?\s*([a-zA-Z]+)\s*\}}?$", _number_word),  # three
    (rf"^{WORDS}\{{\s*(?i:no solutions?)\s*\.?\s*\}}$", r"\\emptyset"),
    (rf"^{WORDS}\{{\s*(?i:(?:the )?(?:set of )?all real numbers|all reals)\s*\.?\s*\}}$", r"\\mathbb{R}"),
    (rf"^{WORDS}\{{\s*(?i:(?:the )?(?:set of )?all integers)\s*\.?\s*\}}$", r"\\mathbb{Z}"),
    (rf"(?:{WORDS}\{{)?\s*(?i:(?<![a-zA-Z])percent|per cent)(?![a-zA-Z])\s*\}}?", r"\\%"),
    (rf"{WORDS}\{{\s*\\?%\s*\}}", r"\\%"),
    (rf"^{WORDS}\{{\s*(\d[\d.,]*)\s*([^{{}}]*)\}}$", r"\1\\text{\2}"),  # \text{5 m}
    (rf"(\d[\d.,]*+)(?:\\ |\s)*+(?:{WORDS}\{{)?\s*(?i:({MAGNITUDE}))(?![a-zA-Z])([^{{}}]*)\}}?", _magnitude),
    (r"\\text\{\s*\}", ""),
)
BRACKETS = _compiled(
    (r"^\](.+,.+)\[$", r"(\1)"),
    (r"^\](.+,.+\])$", r"(\1"),
    (r"^(\[[^\[\]]+,[^\[\]]+)\[$", r"\1)"),
    (r"\\langle(?![a-zA-Z])(.*)\\rangle(?![a-zA-Z])", r"(\1)"),
)
NUMBERS = _compiled(
    (r"(?<![\d.,])\d{1,3}(?:(?:\\,|\\ |~|\{,\}| )\d{3})+(?![\d.]*\d)", _joined),  # 1\,000
    (
        r"(?<![\d.,(\[])(?<!\\\{)(?<![,(\[{] )\d{1,3}(?:,\d{3})+(?![\d,]|\.?\d*[)\]])",
        _joined,
    ),  # 1,000
    (r"(?<![\d.])(\d+)\.(\d*)\\(?:overline|bar)\s*\{(\d+)\}", _repeating),
    (r"(?<![\w.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?)0*(\d+)(?![\w.])", r"{\1 \\times 10^{\2\3}}"),  # 1e-05
    (r"\^\{\+", "^{"),
    (r"(?<![\d.^_])(\d+)\s*\\frac\s*\{(\d+)\}\s*\{0*([1-9]\d*)\}", _mixed),
    (r"(?<![\d.^_])(\d+)\s+(\d+)\s*/\s*0*([1-9]\d*)(?![\d.])", _mixed),  # 3 1/2
)
