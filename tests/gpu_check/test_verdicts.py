"""The verdicts of a kit as a part's lines: a guarantee that fails, or nothing that holds, fails the part."""

from functools import partial
from pathlib import Path

import pytest

from benchmarks.gpu_check.outcomes import FailedError
from benchmarks.gpu_check.verdicts import lines_of, side_by_side
from contracts.conformance.verdicts import Guarantee, Verdict
from tests.pipeline.runs import wait_for

CONTENT = Verdict(Guarantee("G1", "content"), "pass", "equal", 3.2)
ENDURANCE = Verdict(Guarantee("G8", "endurance"), "fail", "memory grew", 40.0, "flat memory", "50 updates")
TOOLS = Verdict(Guarantee("G9", "tokens"), "not declared", "no tools", 0.1)


def test_a_guarantee_that_fails_says_what_was_expected_and_nothing_declared_is_no_pass():
    with pytest.raises(FailedError) as failed:
        lines_of([CONTENT, ENDURANCE])
    assert failed.value.lines == [
        "pass: G1 3 s",
        "fail: G8 40 s",
        "G8: memory grew; expected: flat memory",
    ]
    with pytest.raises(FailedError):  # nothing holds
        lines_of([TOOLS])


def meet(folder: Path, code: str) -> list[Verdict]:
    """Returns a verdict once the other guarantee's process is here as well."""
    (folder / code).touch()
    wait_for(lambda: len(list(folder.iterdir())) == 2)
    return [CONTENT if code == "G1" else TOOLS]


def test_guarantees_run_side_by_side_and_keep_their_order(tmp_path):
    lines = side_by_side(partial(meet, tmp_path), ["G1", "G9"], at_once=2)
    assert lines == ["pass: G1 3 s", "not declared: G9 0 s"]
