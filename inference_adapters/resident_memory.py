"""The resident memory of an engine's processes, for `/contract` and `/metrics`.

Pages of mapped files, such as stored weights, do not count, because the system can reclaim them.
"""

import contextlib
from pathlib import Path

import psutil

OWN_PAGES = ("RssAnon:", "RssShmem:")  # fields of /proc/PID/status, in kB


def resident_bytes() -> int:
    return _resident(psutil.Process())


def resident_bytes_of_family(pid: int | None = None) -> int:
    """Returns the resident memory of a process (by default this one) and its descendants, in bytes."""
    resident = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                resident += _resident(process)
    return resident


def _resident(process: psutil.Process) -> int:
    """Returns the memory of one process. Without /proc, mapped files count too."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        fields = [line.split() for line in lines]
        own = [int(field[1]) for field in fields if field and field[0] in OWN_PAGES]
        if own:
            return sum(own) * 1024
    return process.memory_info().rss
