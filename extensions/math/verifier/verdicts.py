"""The verdicts on an answer, and the type of rules."""

from collections.abc import Callable

RIGHT = "right"
WRONG = "wrong"
UNDECIDED = "undecided:meaning"  # the verdict depends on the problem

Equal = Callable[[str, str], bool]  # math-verify's comparison of two LaTeX texts
# (reference, answer, comparison) -> verdict, or None if the rule does not apply
Rule = Callable[[str, str, Equal], str | None]
