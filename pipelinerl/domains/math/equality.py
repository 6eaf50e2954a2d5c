"""What runs in a worker of the judge: math-verify, under a limit of memory.

Its options are those under which it agrees best with tests/domains/math/verdicts.jsonl. They are strict, or
any two names are equal. Relations are compared to values, for "x = 4". Its own timeouts are off, because they
would give a silent "wrong".
"""

import logging
import resource
import sys

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from contracts.support.die_with_parent import die_with_parent

EXTRACTION = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]


def begin(memory_bytes: int) -> None:
    die_with_parent()
    if sys.platform == "linux":  # macOS refuses a limit below what a process has mapped already
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it keeps no time; the pool does
    if not equal("1", r"\frac{2}{2}"):  # reads its grammar too, which is not to count as a verdict's time
        raise RuntimeError("math-verify does not work here")


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
