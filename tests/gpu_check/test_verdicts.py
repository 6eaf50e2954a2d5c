"""The verdicts of a kit as a part's lines: a guarantee that fails, or nothing that holds, fails the part."""

import pytest

from benchmarks.gpu_check.outcomes import FailedError
from benchmarks.gpu_check.verdicts import lines_of
from contracts.conformance.verdicts import Guarantee, Verdict

CONTENT = Verdict(Guarantee("G1", "content"), "pass", "equal", 3.2)
ENDURANCE = Verdict(Guarantee("G8", "endurance"), "fail", "memory grew", 40.0, "flat memory", "50 updates")
TOOLS = Verdict(Guarantee("G9", "tokens"), "not declared", "no tools", 0.1)


def test_a_guarantee_that_fails_says_what_was_expected():
    with pytest.raises(FailedError) as failed:
        lines_of([CONTENT, ENDURANCE])
    assert failed.value.lines == [
        "pass: G1 3 s",
        "fail: G8 40 s",
        "G8: memory grew; expected: flat memory",
    ]


def test_nothing_declared_is_no_pass():
    with pytest.raises(FailedError):
        lines_of([TOOLS])
