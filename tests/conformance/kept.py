"""What the tests of every adapter say of the kit's verdicts."""

from collections.abc import Sequence

from contracts.conformance.verdicts import Verdict


def assert_kept(verdicts: Sequence[Verdict]) -> None:
    """Raises AssertionError that says what did not pass, each guarantee in a line."""
    others = [verdict for verdict in verdicts if verdict.state != "pass"]
    lines = [f"{v.guarantee.code} {v.state}: {v.measured}; to reproduce: {v.reproduce}" for v in others]
    if not verdicts or lines:
        raise AssertionError("\n".join(lines or ["nothing was checked"]))
