"""Costs as counts, which are the same on every machine."""

import sys
from collections.abc import Callable


def lines_run(work: Callable[[], object]) -> int:
    """Returns how many lines of Python a call executes; a line counts once for each pass of a loop."""
    lines = 0

    def trace(frame: object, event: str, argument: object) -> Callable:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines
