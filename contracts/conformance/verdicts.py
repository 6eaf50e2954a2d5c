"""The verdict on one guarantee: pass, fail, or not declared.

A check measures, and returns what it measured as one short sentence. It raises `GuaranteeError` if the
guarantee does not hold, and `NotDeclaredError` if the adapter does not claim it.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Guarantee:
    """One row of the table; `code` and `name` are defined by the contract."""

    code: str  # G1 ... G16, T1 ... T10
    name: str


class GuaranteeError(AssertionError):
    """A guarantee does not hold."""

    def __init__(self, measured: str, expected: str, reproduce: str):
        super().__init__(f"{measured}; expected: {expected}; to reproduce: {reproduce}")
        self.measured = measured  # "logprob of token 7 is off by 0.31"
        self.expected = expected  # "at most 0.001 from a Hugging Face forward of the sent weights"
        self.reproduce = reproduce  # "publish version 2 in two buckets, then complete [5, 17, 3] greedily"


class NotDeclaredError(Exception):
    """The adapter does not claim this guarantee; the message says what is missing."""


@dataclass(frozen=True)
class Verdict:
    """The result of checking one guarantee.

    A failure also says what was expected and how to reproduce it.
    """

    guarantee: Guarantee
    state: Literal["pass", "fail", "not declared"]
    measured: str
    seconds: float
    expected: str | None = None  # what a failed check expected
    reproduce: str | None = None

    @classmethod
    def of_failure(cls, guarantee: Guarantee, error: Exception, seconds: float) -> "Verdict":
        """Returns the verdict for an error that a check raised.

        A GuaranteeError describes itself. A correct adapter causes no other errors.
        """
        if isinstance(error, NotDeclaredError):
            return cls(guarantee, "not declared", str(error), seconds)
        if isinstance(error, GuaranteeError):
            return cls(guarantee, "fail", error.measured, seconds, error.expected, error.reproduce)
        if isinstance(error, TimeoutError):
            return cls(
                guarantee, "fail", f"no end after {seconds:.0f} s", seconds, "an end", "run this alone"
            )
        raised = f"{type(error).__name__}: {error}".strip(": ")
        return cls(
            guarantee, "fail", raised, seconds, "an answer that the contract allows", "run this check alone"
        )
