"""What the kernel tells of a process and its descendants: their threads, and how long these have waited."""

import os
from collections.abc import Iterator
from contextlib import suppress

NANOSECONDS = 1e9
LOOKED_AT = 64  # threads of which the wait is read


def threads_of(process: int | str) -> list[str]:
    """Returns the directories of the threads, those of children first, because a parent waits for them."""
    return list(_threads_of(process))


def waits_of(threads: list[str]) -> dict[str, float]:
    """Returns the seconds that threads have waited for a processor so far; 0 if the kernel does not say."""
    return {thread: _waited_s(thread) for thread in threads[:LOOKED_AT]}


def _threads_of(process: int | str) -> Iterator[str]:
    own: list[str] = []
    with suppress(OSError):
        own = [f"/proc/{process}/task/{thread}" for thread in os.listdir(f"/proc/{process}/task")]
    for thread in own[:1]:
        with suppress(OSError), open(f"{thread}/children") as children:
            for child in children.read().split():
                yield from _threads_of(child)
    yield from own


def _waited_s(thread: str) -> float:
    with suppress(OSError, ValueError, IndexError), open(f"{thread}/schedstat") as opened:
        return int(opened.read().split()[1]) / NANOSECONDS
    return 0.0
