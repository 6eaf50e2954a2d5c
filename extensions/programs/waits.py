"""How long a process has waited for a processor, by Linux's /proc/PID/task/TID/schedstat."""

import os
from contextlib import suppress

NANOSECONDS = 1e9


def waited_s(process: int) -> float:
    """Returns the longest wait of a thread of the process, in seconds; 0 if the kernel tells none."""
    longest = 0.0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            longest = max(longest, _waited_s(f"/proc/{process}/task/{thread}/schedstat"))
    return longest


def _waited_s(file: str) -> float:
    with suppress(OSError, ValueError, IndexError), open(file) as opened:
        return int(opened.read().split()[1]) / NANOSECONDS
    return 0.0
