"""The verdicts on an answer, and the signature of rules."""

from collections.abc import Callable

RIGHT = "right"
WRONG = "wrong"
UNDECIDED = "undecided:meaning"  # the verdict depends on the problem

Equal = Callable[[str, str], bool]  # returns True if math-verify considers two LaTeX texts equal
# Receives the reference and the answer. Returns a verdict, or None if the rule does not apply.
Rule = Callable[[str, str, Equal], str | None]
