"""Compares a boxed answer with the reference, by math-verify, and by rules for cases in which it errs.

The comparison is strict, because otherwise any two names would be equal. Relations are compared with values,
for answers such as "x = 4". math-verify's timeouts are off, because they would return "wrong" silently. It
drops no units, because quantities.py compares them. Its search for an answer in a text is not used. It would
extract the last number of texts that it cannot parse, such as "5 \\to 4".
"""

import logging
import re
from typing import Any

from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import verify
from math_verify.grader import should_treat_as_complex
from sympy import I, Intersection

from extensions.math.verifier import (
    bases,
    exact_numbers,
    percentages,
    quantities,
    relations,
    wordings,
)
from extensions.math.verifier.notations import rewritten
from extensions.math.verifier.verdicts import RIGHT, WRONG, Equal, Rule
from extensions.math.verifier.warm_up import PAIRS
from pipelinerl.judging.verifiers.base import Verifier
from pipelinerl.judging.wire import Judgement

NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
OPTIONS = {"strict": True, "allow_set_relation_comp": True, "timeout_seconds": None, "raise_on_error": True}
TOKEN = re.compile(r"(?P<box>\\boxed\s*\{)|(?P<brace>\{)|(?P<end>\})|\\.", re.DOTALL)  # \\. skips escapes


def _named(gold: str, given: str, equal: Equal) -> str | None:
    value = relations.value_of(gold, given)
    return verdict(gold, value) if value else None


RULES: tuple[Rule, ...] = (
    wordings.hidden,
    wordings.chosen,
    wordings.named,
    wordings.lettered,
    wordings.dotted,
    wordings.connected,
    bases.compared,
    bases.subscripted,
    relations.open_relation,
    relations.statement,
    relations.chained,
    relations.equation,
    relations.assigned,
    _named,
    relations.repeated,
    relations.columns,
    relations.bracketed,
    relations.inequalities,
    quantities.compared,
    quantities.angles,
    percentages.compared,
)


class MathVerifier(Verifier):
    """A verifier of the last box of a text. A task is the text of the reference answer."""

    def __init__(self):
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that timeouts are off
        exact_numbers.use()
        if not [equal(*pair) for pair in PAIRS][0]:
            raise RuntimeError("math-verify does not work here")

    def answer_in(self, text: str) -> str | None:
        return last_boxed(text)

    def judge(self, task: str, answer: str) -> Judgement:
        found = verdict(task, answer)
        return Judgement(float(found == RIGHT), found == RIGHT, found)


def verdict(reference: str, answer: str) -> str:
    """Returns the verdict of the first rule that applies, or of math-verify."""
    if reference == answer:
        return RIGHT
    gold = rewritten(reference)
    given = wordings.without_opening(rewritten(answer))
    for rule in RULES:
        if found := rule(gold, given, equal):
            return found
    return RIGHT if equal(gold, given) else WRONG


def equal(reference: str, answer: str) -> bool:
    """Returns True if math-verify finds the two equal. Raises only MemoryError and RecursionError."""
    if reference == answer:
        return True
    try:
        return _verified(reference, answer)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return False


def _verified(reference: str, answer: str) -> bool:
    gold, given = (
        normalize_latex(exact_numbers.without_decimals(text), NORMALIZATION) for text in (reference, answer)
    )
    return gold == given or verify(_parsed(gold), _parsed(given), **OPTIONS)


def _parsed(latex: str) -> Any:
    """Returns the expression of the complete text, with the imaginary unit in place of the symbol i."""
    is_real = not should_treat_as_complex(latex)
    value = latex2sympy(latex, is_real=is_real, convert_degrees=False, normalization_config=None)
    value = value.doit() if isinstance(value, Intersection) else value
    return value.subs({symbol: I for symbol in value.free_symbols if symbol.name == "i"})


def last_boxed(text: str) -> str | None:
    """Returns the content of the last closed box, or None if it is missing or empty. Takes linear time."""
    opened: list[int | None] = []  # start of a box's content; None for a brace
    last = (0, 0)  # an outer box closes after its inner ones
    for token in TOKEN.finditer(text):
        if token["box"]:
            opened.append(token.end())
        elif token["brace"]:
            opened.append(None)
        elif token["end"] and opened and (start := opened.pop()) is not None:
            last = (start, token.start())
    return text[slice(*last)].strip() or None
