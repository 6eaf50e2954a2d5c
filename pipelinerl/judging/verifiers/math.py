"""Whether a boxed answer equals the reference, by math-verify.

Its options are those under which it agrees best with tests/judging/math_answers.jsonl. They are strict, or
any two names are equal. Relations are compared to values, for "x = 4". Its own timeouts are off, because they
would give a silent "wrong".
"""

import logging

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from pipelinerl.judging.verifiers.base import Verifier
from pipelinerl.judging.verifiers.boxed import last_boxed
from pipelinerl.judging.verifiers.math_warm_up import PAIRS
from pipelinerl.judging.wire import Judgement

EXTRACTION = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]


class MathVerifier(Verifier):
    """Judges the last box of a text. A task is the reference, as text."""

    def __init__(self):
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it keeps no time
        if not [equal(*pair) for pair in PAIRS][0]:
            raise RuntimeError("math-verify does not work here")

    def answer_in(self, text: str) -> str | None:
        return last_boxed(text)

    def judge(self, task: str, answer: str) -> Judgement:
        right = equal(task, answer)
        return Judgement(float(right), right, "right" if right else "wrong")


def equal(reference: str, answer: str) -> bool:
    """Raises MemoryError and RecursionError where sympy lets them out; any other error is no equality."""
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
        for text in (reference, answer)
    )
    return verify(
        gold,
        given,
        strict=True,
        allow_set_relation_comp=True,
        float_rounding=12,
        numeric_precision=30,
        timeout_seconds=None,
        raise_on_error=True,
    )
