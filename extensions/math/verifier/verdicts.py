"""The verdicts on an answer, and the form of a comparison that rules share."""

from collections.abc import Callable

RIGHT = "right"
WRONG = "wrong"
UNDECIDED = "undecided:meaning"  # a grader would need the problem to tell

Equal = Callable[[str, str], bool]  # whether math-verify takes two LaTeX texts for equal
# Takes the reference and the answer, and returns a verdict, or None if the rule does not apply.
Rule = Callable[[str, str, Equal], str | None]
