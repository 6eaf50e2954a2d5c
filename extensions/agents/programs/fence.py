"""Confines a program at the level `fenced` or `process`, before it is executed."""

import errno
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from contracts.support.die_with_parent import die_with_parent
from extensions.agents.programs.messages import AgentLimits
from pipelinerl.judging.isolation import landlock, privileges, seccomp

SYSTEM = [
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache"),
    *(
        "/etc/ssl",
        "/etc/gitconfig",
        "/etc/localtime",
        "/etc/passwd",
        "/etc/group",
        "/etc/nsswitch.conf",
        "/etc/hosts",
    ),
    *("/etc/host.conf", "/etc/resolv.conf", "/etc/mime.types", "/sys/devices/system/cpu"),
    *("/proc/cpuinfo", "/proc/meminfo", "/dev/urandom", "/dev/random", "/dev/zero"),
]
WRITABLE = ["/dev/null"]
REFUSED = [
    *("add_key", "keyctl", "request_key", "bpf", "perf_event_open", "syslog", "reboot", "quotactl"),
    *("fanotify_init", "inotify_init", "inotify_init1", "inotify_add_watch"),
    *("name_to_handle_at", "open_by_handle_at", "userfaultfd", "vmsplice", "personality"),
    *("fsconfig", "fsmount", "fsopen", "mount", "mount_setattr", "move_mount", "open_tree", "umount2"),
    *("pivot_root", "setns", "unshare", "swapoff", "swapon", "listen", "memfd_create"),
    *("init_module", "finit_module", "kexec_file_load", "kexec_load"),
    *("io_uring_enter", "io_uring_register", "io_uring_setup"),
    *("process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "ptrace", "kcmp"),
    *("pidfd_getfd", "pidfd_open", "migrate_pages", "move_pages"),
    *("shmget", "shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semctl"),
    *("semtimedop", "mq_open", "mq_unlink"),
]
OF_ITSELF = [  # call, place of an argument, and the value that it must have: for the caller itself
    ("prlimit64", 0, 0),
    ("sched_setaffinity", 0, 0),
    ("sched_setattr", 0, 0),
    ("sched_setparam", 0, 0),
    ("sched_setscheduler", 0, 0),
    ("setpriority", 0, 0),
    ("setpriority", 1, 0),
    ("ioprio_set", 0, 1),
    ("ioprio_set", 1, 0),
]
FAST_OPEN = 0x20000000  # flag of sends that connect
SENDS = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}  # the argument with the flags
UNCOUNTED_MEMORY = (0x21, 0x100)  # flags of mmap: shared and anonymous; growing down
PROTOCOLS = (0, 6)  # of sockets: the default, and TCP
OF_FILES = [
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "fchownat", "lchown"),
    *("setxattr", "fsetxattr", "lsetxattr", "removexattr", "fremovexattr", "lremovexattr"),
    *("utime", "utimes", "utimensat", "futimesat"),
]
NAMESPACES = [0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000]  # of clone
INTERNET = (2, 10)  # families of sockets
LAST_FAMILY = 10
NO_STREAMS = (2, 3, 4, 5, 6, 10)  # types of sockets
TYPE = 0xF  # mask of a type, without its flags


class Fence:
    """A prepared level. readable: paths that a fenced program may read and execute, beside the system's.

    Raises OSError with the reason if the level is not available on this machine.
    """

    def __init__(self, is_fenced: bool, limits: AgentLimits, readable: Sequence[str]):
        self._limits = limits
        self._readable = [*readable, *SYSTEM]
        self._filter = b""
        if is_fenced:
            if landlock.version() < landlock.WITH_SCOPES:
                raise OSError(errno.ENOSYS, "this kernel's Landlock holds neither ports nor signals")
            self._filter = filter_of()

    def enter(self, directory: str, port: int) -> None:
        """Confines this process. A fenced one owns the directory, and connects to this port alone."""
        privileges.no_new_privileges()
        privileges.drop_capabilities()
        die_with_parent()
        self._limit()
        if self._filter:
            rules = landlock.ruleset(self._readable, WRITABLE, True, [directory], [port])
            landlock.restrict(rules)
            os.close(rules)
            seccomp.restrict(self._filter)

    def _limit(self) -> None:
        limits = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: self._limits.memory_bytes,
            resource.RLIMIT_FSIZE: self._limits.disk_bytes,
            resource.RLIMIT_NOFILE: self._limits.open_files,
            resource.RLIMIT_NPROC: self._limits.processes,
        }
        for kind, value in limits.items():
            _, given = resource.getrlimit(kind)
            most = value if given == resource.RLIM_INFINITY else min(value, given)
            resource.setrlimit(kind, (most, most))


def filter_of() -> bytes:
    """Returns the filter of a fenced program's calls. Raises OSError if libseccomp is missing.

    Calls that change modes, owners and times do nothing, because Landlock does not hold them.
    """
    library = seccomp.loaded()
    rules = library.SyscallFilter(library.ALLOW)
    refused = library.ERRNO(errno.EPERM)
    for name in REFUSED:
        seccomp.add(library, rules, refused, name)
    for name in OF_FILES:
        seccomp.add(library, rules, library.ERRNO(0), name)
    seccomp.add(library, rules, library.ERRNO(errno.ENOSYS), "clone3")  # its flags are in memory
    for flag in NAMESPACES:
        seccomp.add(library, rules, refused, "clone", library.Arg(0, library.MASKED_EQ, flag, flag))
    for family in range(LAST_FAMILY):
        if family not in INTERNET:
            seccomp.add(library, rules, refused, "socket", library.Arg(0, library.EQ, family))
    seccomp.add(library, rules, refused, "socket", library.Arg(0, library.GT, LAST_FAMILY))
    for protocol in range(1, max(PROTOCOLS)):
        seccomp.add(library, rules, refused, "socket", library.Arg(2, library.EQ, protocol))
    seccomp.add(library, rules, refused, "socket", library.Arg(2, library.GT, max(PROTOCOLS)))
    for name, place, value in OF_ITSELF:
        seccomp.add(library, rules, refused, name, library.Arg(place, library.NE, value))
    for name, place in SENDS.items():
        seccomp.add(
            library, rules, refused, name, library.Arg(place, library.MASKED_EQ, FAST_OPEN, FAST_OPEN)
        )
    for flags in UNCOUNTED_MEMORY:
        seccomp.add(library, rules, refused, "mmap", library.Arg(3, library.MASKED_EQ, flags, flags))
    for kind in NO_STREAMS:
        seccomp.add(library, rules, refused, "socket", library.Arg(1, library.MASKED_EQ, TYPE, kind))
    return seccomp.exported(rules)


def paths_of(command: Sequence[str]) -> list[str]:
    """Returns what a command reads: its executable, the Python that this belongs to, and files it names."""
    executable = which(command[0]) or command[0]
    files = [executable, *(part for part in command[1:] if os.path.isabs(part) and os.path.exists(part))]
    prefixes = [Path(path).parent.parent for path in (executable, os.path.realpath(executable))]
    pythons = [str(prefix) for prefix in prefixes if is_python(prefix)]
    if sys.prefix in pythons:  # the base of a virtual environment
        pythons.append(sys.base_prefix)
    return [*map(os.path.abspath, files), *pythons]


def is_python(prefix: Path) -> bool:
    """Returns True for a Python's directory, or a virtual environment."""
    try:
        return (prefix / "pyvenv.cfg").is_file() or any(prefix.glob("lib/python3*"))
    except OSError:  # the user nobody may not look
        return False
