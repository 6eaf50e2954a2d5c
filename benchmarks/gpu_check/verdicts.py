"""The verdicts of a conformance kit as the lines of a part."""

from collections.abc import Sequence

from benchmarks.gpu_check.outcomes import FailedError
from contracts.conformance.table import all_hold
from contracts.conformance.verdicts import Verdict


def lines_of(verdicts: Sequence[Verdict]) -> list[str]:
    """Returns a line for each state, and one for each failure. Raises FailedError unless all hold."""
    lines = []
    for state in ("pass", "fail", "not declared"):
        found = [f"{v.guarantee.code} {v.seconds:.0f} s" for v in verdicts if v.state == state]
        lines += [f"{state}: {', '.join(found)}"] if found else []
    if all_hold(verdicts):
        return lines
    failures = [v for v in verdicts if v.state == "fail"]
    raise FailedError(
        *lines, *(f"{v.guarantee.code}: {v.measured}; expected: {v.expected}" for v in failures)
    )
