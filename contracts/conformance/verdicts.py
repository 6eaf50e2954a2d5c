"""The verdict on one guarantee: pass, fail, or not declared.

A check returns its measurement as one short sentence. It raises `GuaranteeError` if the guarantee does not
hold, and `NotDeclaredError` if the adapter does not claim it.
"""

from collections.abc import Collection, Sequence
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
    """The result of checking one guarantee. A failure also says what was expected and how to reproduce it."""

    guarantee: Guarantee
    state: Literal["pass", "fail", "not declared"]
    measured: str
    seconds: float
    expected: str | None = None  # what a failed check expected
    reproduce: str | None = None
    part: str | None = None  # the part of the guarantee that failed, or the only one that was tried

    @classmethod
    def of_parts(
        cls,
        guarantee: Guarantee,
        parts: Collection[str],
        measured: Sequence[str],
        missing: Sequence[str],
        seconds: float,
    ) -> "Verdict":
        """Returns the verdict on a guarantee of which no part has failed.

        parts: the names of those that were tried.
        measured: what was measured, by part.
        missing: why parts were not declared.
        """
        part = next(iter(parts)) if len(parts) == 1 else None
        if measured:
            return cls(guarantee, "pass", "; ".join(measured), seconds, part=part)
        return cls(guarantee, "not declared", missing[0], seconds, part=part)

    @classmethod
    def of_failure(cls, guarantee: Guarantee, part: str, error: Exception, seconds: float) -> "Verdict":
        """Returns the verdict for an error that the check of `part` raised.

        A GuaranteeError describes itself. A correct adapter causes no other errors.
        """
        if isinstance(error, GuaranteeError):
            return cls(guarantee, "fail", error.measured, seconds, error.expected, error.reproduce, part)
        if isinstance(error, TimeoutError):
            measured = f"no end after {seconds:.0f} s"
            return cls(guarantee, "fail", measured, seconds, "an end", "run this alone", part)
        measured = f"{type(error).__name__}: {error}".strip(": ")
        expected = "an answer that the contract allows"
        return cls(guarantee, "fail", measured, seconds, expected, "run this check alone", part)
