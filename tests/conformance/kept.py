"""Assertions on the kit's verdicts, for the tests of every adapter."""

from collections.abc import Sequence

from contracts.conformance.verdicts import Verdict


def assert_kept(verdicts: Sequence[Verdict]) -> None:
    """Raises AssertionError with one line for each guarantee that did not pass."""
    others = [verdict for verdict in verdicts if verdict.state != "pass"]
    lines = [f"{v.guarantee.code} {v.state}: {v.measured}; to reproduce: {v.reproduce}" for v in others]
    if not verdicts or lines:
        raise AssertionError("\n".join(lines or ["nothing was checked"]))
