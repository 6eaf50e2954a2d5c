"""The memory of an engine's processes, which `/contract` reports.

Pages of mapped files do not count: the system can take them back, and stored weights are mapped.
"""

import contextlib
from pathlib import Path

import psutil

OWN_PAGES = ("RssAnon:", "RssShmem:")  # of /proc/PID/status, in kB


def resident_bytes() -> int:
    """Returns the resident memory of this process in bytes."""
    return _resident(psutil.Process())


def resident_bytes_of_family(pid: int | None = None) -> int:
    """Returns the resident memory of a process (this one by default) and of its descendants, in bytes."""
    resident = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                resident += _resident(process)
    return resident


def _resident(process: psutil.Process) -> int:
    """Returns the memory of one process. Where the system does not tell the kinds apart, files count too."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        fields = [line.split() for line in lines]
        own = [int(field[1]) for field in fields if field and field[0] in OWN_PAGES]
        if own:
            return sum(own) * 1024
    return process.memory_info().rss
