"""What the kernel tells of a process: its threads, and how long they have waited for a processor."""

import os
from contextlib import suppress
from typing import NamedTuple

NANOSECONDS = 1e9
LOOKED_AT = 64  # threads of which the wait is read


class Seen(NamedTuple):
    """threads: their number. waited_s: seconds of the one that waited longest; 0 if the kernel has none."""

    threads: int
    waited_s: float


def seen_of(process: int) -> Seen:
    """Returns what is seen of a process now, which may have ended."""
    threads: list[str] = []
    with suppress(OSError):
        threads = os.listdir(f"/proc/{process}/task")
    files = (f"/proc/{process}/task/{thread}/schedstat" for thread in threads[:LOOKED_AT])
    return Seen(len(threads), max(map(_waited_s, files), default=0.0))


def _waited_s(file: str) -> float:
    with suppress(OSError, ValueError, IndexError), open(file) as opened:
        return int(opened.read().split()[1]) / NANOSECONDS
    return 0.0
