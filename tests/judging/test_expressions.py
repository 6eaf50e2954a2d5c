"""A formula calls elementary functions alone, however the call is written."""

import pytest

from pipelinerl.judging.verifiers.expressions import NoFormulaError, formula

CALLS = [
    "chr(49)",
    "(chr)(49)",
    "((chr))(49)",
    "(chr\n(49))",
    "(chr\n\n(49))",
    "(1 + chr)(49)",
    "sqrt(chr)(49)",
    "(eval)((chr)(49) + (chr)(49))",
    "2(3)",
]


@pytest.mark.parametrize("text", CALLS)
def test_no_other_function_is_called(text):
    with pytest.raises(NoFormulaError, match="is called"):
        formula(text)


def test_arithmetic_is_read():
    assert formula("(1 + 2)*(3 - (-4))**2") == 147
    assert formula("(sqrt(4)\n+ Abs\n(-3)) / (5)") == 1
    assert str(formula("Integral(x, (x, 0, 1)) + C")) == "C + Integral(x, (x, 0, 1))"
