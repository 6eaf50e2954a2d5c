"""Waits for a condition."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], within_s: float = 180) -> object:
    """Returns what the condition returns, once that is true. Fails after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return found
