"""Compares numbers exactly, such that 1/2^120 differs from 0. math-verify compares only some decimals.

The comparison replaces math-verify's, also in tuples and sets.
"""

import re
from fractions import Fraction
from typing import Any

from math_verify import grader
from sympy import Basic, MatrixBase, Rational, UnevaluatedExpr

DIGITS = 30
NO_DIFFERENCE = Rational(1, 10**60)  # sympy evaluates a zero difference to at most 1e-100 of its terms
DECIMAL = re.compile(r"([_^]?)(?<![\d.])(\d*\.\d+)(?![\d.])", re.ASCII)


def use() -> None:
    """Replaces math-verify's comparison of numbers in this process."""
    grader.sympy_numeric_eq = numbers_equal


def without_decimals(text: str) -> str:
    """Returns the LaTeX text with fractions in place of decimals, which sympy would round to floats."""
    return DECIMAL.sub(_fraction, text)


def _fraction(decimal: re.Match[str]) -> str:
    value = Fraction(decimal[2])
    fraction = f"\\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value)
    return f"{decimal[1]}{{{fraction}}}" if decimal[1] else fraction


def numbers_equal(gold: Any, given: Any, float_rounding: int = 0, numeric_precision: int = 0) -> bool:
    """Returns True if two sympy expressions, or matrices of one shape, have the same value.

    If the result is False, math-verify tries to simplify their difference. The two integers are arguments of
    math-verify, and ignored.
    """
    if isinstance(gold, MatrixBase) and isinstance(given, MatrixBase):
        same_shape = gold.shape == given.shape
        return same_shape and all(map(numbers_equal, gold.doit().flat(), given.doit().flat()))
    if not isinstance(gold, Basic) or not isinstance(given, Basic):
        return False
    first = _evaluated(gold)
    second = _evaluated(given)
    irrational = not (first.is_Rational and second.is_Rational)
    if irrational and first.is_number and second.is_number and first.is_finite and second.is_finite:
        larger = max(abs(first.evalf(DIGITS)), abs(second.evalf(DIGITS)))
        return bool(abs((first - second).evalf(DIGITS)) <= NO_DIFFERENCE * larger)
    return bool(first == second)


def _evaluated(expression: Any) -> Any:
    return expression.replace(UnevaluatedExpr, lambda inner: inner).doit()
