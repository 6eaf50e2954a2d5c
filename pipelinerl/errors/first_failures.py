"""Ends a run whose first attempts, or first judgements, all fail with the same exception. Pure state.

Called by the actor's runners, and by its client of the judging service. They do not report failures of
servers, which may be temporary.
"""

from collections import Counter

from pipelinerl.errors import GaveUpError
from pipelinerl.errors.part_faults import kind_of

MOST = 32


class FirstFailures:
    """noun: plural noun for messages. The first success disables the check."""

    def __init__(self, noun: str):
        self._noun = noun
        self._by_kind: Counter[str] = Counter()
        self._is_disabled = False

    def succeeded(self) -> None:
        self._is_disabled = True

    def failed(self, fault: str) -> None:
        """Counts the failure. Raises GaveUpError if MOST failures were of this kind."""
        if self._is_disabled:
            return
        kind = kind_of(fault)
        self._by_kind[kind] += 1
        if self._by_kind[kind] >= MOST:
            raise GaveUpError(f"gave up: the first {MOST} {self._noun} failed alike: {fault}")
