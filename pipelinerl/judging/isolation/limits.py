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
        limits = {
            resource.RLIMIT_AS: address_space() + self.memory_bytes,
            resource.RLIMIT_FSIZE: self.file_bytes,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_MSGQUEUE: 0,
            resource.RLIMIT_MEMLOCK: 0,
        }
        if self.cpu_s is not None:
            limits[resource.RLIMIT_CPU] = self.cpu_s
        if count_processes:
            limits[resource.RLIMIT_NPROC] = self.processes
        for kind, value in limits.items():
            _, hard = resource.getrlimit(kind)
            if hard != resource.RLIM_INFINITY:
                value = min(value, hard)
            resource.setrlimit(kind, (value, value))


def address_space() -> int:
    """Returns the bytes of address space that this process uses."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
