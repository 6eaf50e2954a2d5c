"""What the kernel tells of a process: its threads, and how long they have waited for a processor."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

NANOSECONDS = 1e9
LOOKED_AT = 64  # threads of which the wait is read


class Seen(NamedTuple):
    """threads: their number. waited_s: seconds of the one that waited longest; 0 if the kernel has none."""

    threads: int
    waited_s: float


def seen_of(process: int) -> Seen:
    """Returns what is seen now of a process, which may have ended, and of its descendants."""
    threads = list(_threads_of(process))
    return Seen(len(threads), max(map(_waited_s, threads[:LOOKED_AT]), default=0.0))


def _threads_of(process: int | str) -> Iterator[str]:
    """Yields the directories of the threads, those of children first, because a parent waits."""
    threads: list[str] = []
    with suppress(OSError):
        threads = os.listdir(f"/proc/{process}/task")
    own = [f"/proc/{process}/task/{thread}" for thread in threads]
    for thread in own[:1]:
        with suppress(OSError), open(f"{thread}/children") as children:
            for child in children.read().split():
                yield from _threads_of(child)
    yield from own


def _waited_s(thread: str) -> float:
    with suppress(OSError, ValueError, IndexError), open(f"{thread}/schedstat") as opened:
        return int(opened.read().split()[1]) / NANOSECONDS
    return 0.0
