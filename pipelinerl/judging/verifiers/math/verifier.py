"""Decides whether a boxed answer equals the reference: by rules where math-verify errs, else by it.

Comparison is strict, because otherwise any two names would be equal. Relations are compared to values, for
answers such as "x = 4". The library's own timeouts are off, because they would return "wrong" without notice.
It is told to drop no units, because quantities.py compares them.
"""

import logging
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import I

from pipelinerl.judging.verifiers.base import Verifier
from pipelinerl.judging.verifiers.math import (
    bases,
    exact_numbers,
    percentages,
    quantities,
    relations,
    wordings,
)
from pipelinerl.judging.verifiers.math.boxed import last_boxed
from pipelinerl.judging.verifiers.math.notations import rewritten
from pipelinerl.judging.verifiers.math.verdicts import RIGHT, WRONG, Rule
from pipelinerl.judging.verifiers.math.warm_up import PAIRS
from pipelinerl.judging.wire import Judgement

NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
)
LATEX = LatexExtractionConfig(boxed_match_priority=0, normalization_config=NORMALIZATION)
EXTRACTION = [LATEX, ExprExtractionConfig()]
OPTIONS = {"strict": True, "allow_set_relation_comp": True, "timeout_seconds": None, "raise_on_error": True}
RULES: tuple[Rule, ...] = (
    wordings.chosen,
    wordings.named,
    wordings.lettered,
    wordings.dotted,
    wordings.connected,
    bases.compared,
    relations.open_relation,
    relations.statement,
    relations.equation,
    relations.bracketed,
    relations.inequalities,
    quantities.compared,
    quantities.angles,
    percentages.compared,
)


class MathVerifier(Verifier):
    """A verifier of the last box of a text. A task is the reference answer, as text."""

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
    """Returns the verdict of the first rule that applies, or else math-verify's."""
    if reference == answer:
        return RIGHT
    gold = rewritten(reference)
    given = wordings.without_opening(rewritten(answer))
    for rule in RULES:
        if found := rule(gold, given, equal):
            return found
    return RIGHT if equal(gold, given) else WRONG


def equal(reference: str, answer: str) -> bool:
    """Returns whether math-verify takes the two for equal; False if it raises an error.

    MemoryError and RecursionError are passed on.
    """
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
        parse(f"\\boxed{{{text}}}", EXTRACTION, parsing_timeout=None, raise_on_error=True)
        for text in map(exact_numbers.without_decimals, (reference, answer))
    )
    gold, given = ([_complex(value) for value in values] for values in (gold, given))
    return verify(gold, given, **OPTIONS)


def _complex(value: Any) -> Any:
    """Returns the expression with the imaginary unit in place of the symbol i; a text as it is."""
    if isinstance(value, str):
        return value
    return value.subs({symbol: I for symbol in value.free_symbols if symbol.name == "i"})
