"""Ends a run whose first attempts, or first judgements, all fail with the same exception. Pure state.

The actor's runners, and its client of the judging service, tell it how each has ended. Failures of servers
are not told to it, because they may be over in a moment.
"""

from collections import Counter

from pipelinerl.errors import GaveUpError
from pipelinerl.errors.part_faults import kind_of

MOST = 32


class FirstFailures:
    """what: what fails, in the plural. As soon as one of them has not failed, the rest count no more."""

    def __init__(self, what: str):
        self._what = what
        self._by_kind: Counter[str] = Counter()
        self._are_over = False

    def succeeded(self) -> None:
        self._are_over = True

    def failed(self, fault: str) -> None:
        """Counts a failure, which `fault` describes. Raises GaveUpError if so many were the same."""
        if self._are_over:
            return
        kind = kind_of(fault)
        self._by_kind[kind] += 1
        if self._by_kind[kind] >= MOST:
            raise GaveUpError(f"gave up: the first {MOST} {self._what} failed alike: {fault}")
