"""Formulas that an answer holds: arithmetic is computed, and nothing else is called."""

import pytest
import sympy
from reasoning_gym.factory import create_dataset

from extensions.reasoning_gym.expressions import NoFormulaError, formula
from extensions.reasoning_gym.verifier import ReasoningGymVerifier
from tests.extensions.reasoning_gym.hostile_answers import CALLS

X = sympy.Symbol("x")
FORMULAS = {
    "(5 + 3) * (7 - 4)": 24,
    "-(2)**2": -4,
    "sqrt (16) + 1.5": 5.5,
    "2*x*exp(x) - log(x)/(3)": 2 * X * sympy.exp(X) - sympy.log(X) / 3,
    "pi*E": sympy.pi * sympy.E,
    "eval + chr": sympy.Symbol("eval") + sympy.Symbol("chr"),
}


CALLED = [
    "(chr)(49)",
    "((chr))(49)",
    "(chr\n(49))",
    "(chr\n\n(49))",
    "(1 + chr)(49)",
    "sqrt(chr)(49)",
    "(eval)((chr)(49) + (chr)(49))",
    "2(3)",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_arithmetic_is_computed(text):
    assert formula(text, local_dict={"x": X}) == FORMULAS[text]


@pytest.mark.parametrize("text", [*CALLS.values(), *CALLED])
def test_nothing_but_an_elementary_function_is_called_however_it_is_written(text):
    with pytest.raises(NoFormulaError):
        formula(text)


def test_lines_and_integrals_are_read():
    assert formula("(sqrt(4)\n+ Abs\n(-3)) / (5)") == 1
    assert str(formula("Integral(x, (x, 0, 1)) + C")) == "C + Integral(x, (x, 0, 1))"


def test_a_scorer_of_the_library_evaluates_literals_alone():
    scorer = ReasoningGymVerifier("string_insertion", {})
    entry = create_dataset("string_insertion", seed=0, size=1)[0]
    letters = list(entry["answer"])
    assert scorer.judge(entry, str(letters)).reward == 0.1  # as the library scores a list
    assert scorer.judge(entry, f"list({letters})").reward == 0.0
