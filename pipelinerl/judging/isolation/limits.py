"""POSIX limits of one process, for every level: memory, CPU time, files."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """The resources that one worker may use.

    memory_bytes: address space in addition to the amount in use when the limits are applied.
    cpu_s: CPU time of the process since its start; None = unlimited, the caller must end the process.
    file_bytes: size of a written file.
    open_files: number of descriptors.
    processes: number of further processes and threads at level `process`. The kernel counts those of the
        user, and does not limit root. At `sealed` no process can start, and threads are limited by memory.
    """

    memory_bytes: int
    cpu_s: int | None = None
    file_bytes: int = 0
    open_files: int = 64
    processes: int = 0

    def apply(self, count_processes: bool) -> None:
        """Sets soft and hard limits of this process, irrevocably, and forbids core files."""
        limits = dict.fromkeys((resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK), 0)
        limits[resource.RLIMIT_AS] = address_space() + self.memory_bytes
        limits[resource.RLIMIT_FSIZE] = self.file_bytes
        limits[resource.RLIMIT_NOFILE] = self.open_files
        if count_processes:
            limits[resource.RLIMIT_NPROC] = self.processes
        for kind, value in limits.items():
            _limit(kind, value, value)
        if self.cpu_s is not None:  # SIGXCPU, and SIGKILL one second later
            _limit(resource.RLIMIT_CPU, self.cpu_s, self.cpu_s + 1)


def _limit(kind: int, soft: int, hard: int) -> None:
    """Sets a limit unless the existing one is stricter."""
    _, given = resource.getrlimit(kind)
    if given != resource.RLIM_INFINITY:
        soft = min(soft, given)
        hard = min(hard, given)
    resource.setrlimit(kind, (soft, hard))


def address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
