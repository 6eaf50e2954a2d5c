"""Runs the guarantees of a conformance kit side by side, and gives their verdicts as the lines of a part.

A GPU costs by the minute, and a kit spends most of its time in starting processes and waiting for them.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from benchmarks.gpu_check.outcomes import FailedError
from contracts.conformance.table import all_hold
from contracts.conformance.verdicts import Verdict


def side_by_side(check: Callable[[str], Sequence[Verdict]], codes: Sequence[str], at_once: int) -> list[str]:
    """Returns the lines of the guarantees of these codes. `check` checks one, in a process of its own.

    Each verdict is printed as it comes, so that a part that is ended early has said something.
    """
    with ProcessPoolExecutor(at_once, get_context("spawn")) as processes:
        checks = [processes.submit(check, code) for code in codes]
        for ended in as_completed(checks):
            for verdict in ended.result():
                print(f"{verdict.guarantee.code} {verdict.state} {verdict.seconds:.0f} s", flush=True)
        return lines_of([verdict for ended in checks for verdict in ended.result()])


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
