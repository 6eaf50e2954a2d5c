"""Decides whether a boxed answer equals the reference, by math-verify.

The library's options are those that agree best with tests/judging/math_answers.jsonl. Comparison is strict,
because otherwise any two names would be equal. Relations are compared to values, for answers such as "x = 4".
The library's own timeouts are off, because they would return "wrong" without notice.
"""

import logging

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from pipelinerl.judging.verifiers.base import Verifier
from pipelinerl.judging.verifiers.boxed import last_boxed
from pipelinerl.judging.verifiers.math_warm_up import PAIRS
from pipelinerl.judging.wire import Judgement

EXTRACTION = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]


class MathVerifier(Verifier):
    """A verifier of the last box of a text. A task is the reference answer, as text."""

    def __init__(self):
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that timeouts are off
        if not [equal(*pair) for pair in PAIRS][0]:
            raise RuntimeError("math-verify does not work here")

    def answer_in(self, text: str) -> str | None:
        return last_boxed(text)

    def judge(self, task: str, answer: str) -> Judgement:
        right = equal(task, answer)
        return Judgement(float(right), right, "right" if right else "wrong")


def equal(reference: str, answer: str) -> bool:
    """Returns whether the two are equal; False if math-verify raises an error.

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
