"""The memory of an engine's processes, which `/contract` reports. vLLM's and SGLang's adapters call it."""

import contextlib

import psutil


def resident_bytes_of_family(pid: int | None = None) -> int:
    """Returns the resident memory of a process (this one by default) and of its descendants, in bytes."""
    resident = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                resident += process.memory_info().rss
    return resident
