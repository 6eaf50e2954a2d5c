"""The limits of one process: memory, CPU time, files. POSIX's, so that every level has them.

Called by `confine`. Must not know workers or verdicts.
"""

import os
import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """What one worker may use.

    memory_bytes: address space, beyond what is in use when the limits are set.
    cpu_s: CPU time of the process from its start; None leaves it to whoever waits.
    file_bytes: size of a file that it writes.
    open_files: descriptors.
    processes: further processes and threads at level `process`; the kernel counts all of the user, and none
        of root. At `sealed` there is no further process, and threads are bounded by the memory.
    """

    memory_bytes: int
    cpu_s: int | None = None
    file_bytes: int = 0
    open_files: int = 64
    processes: int = 0

    def apply(self, count_processes: bool) -> None:
        """Sets the limits, soft and hard, of this process for good; core files are forbidden."""
        limits = dict.fromkeys((resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK), 0)
        limits[resource.RLIMIT_AS] = address_space() + self.memory_bytes
        limits[resource.RLIMIT_FSIZE] = self.file_bytes
        limits[resource.RLIMIT_NOFILE] = self.open_files
        if count_processes:
            limits[resource.RLIMIT_NPROC] = self.processes
        for kind, value in limits.items():
            _limit(kind, value, value)
        if self.cpu_s is not None:  # a signal that says why, and one second later one that cannot be ignored
            _limit(resource.RLIMIT_CPU, self.cpu_s, self.cpu_s + 1)


def _limit(kind: int, soft: int, hard: int) -> None:
    """A limit that is stricter stays."""
    _, given = resource.getrlimit(kind)
    if given != resource.RLIM_INFINITY:
        soft = min(soft, given)
        hard = min(hard, given)
    resource.setrlimit(kind, (soft, hard))


def address_space() -> int:
    """Returns the bytes of address space that this process uses."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
