"""Restricts a process to the system calls of computing and reading files, by seccomp.

libseccomp writes the filter for this machine's architecture. A call in the convention of another architecture
ends the process.
"""

import ctypes
import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_SECCOMP = 22
MODE_FILTER = 2
INSTRUCTION_BYTES = 8
CLONE_THREAD = 0x10000
UNKNOWN = -1  # libseccomp's number for a call that it does not know

MEMORY = "brk madvise mmap mprotect mremap msync munmap membarrier"
FILES = """access close close_range dup dup2 dup3 faccessat faccessat2 fadvise64 fstat fstatfs getcwd
getdents getdents64 lseek lstat newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 read readlink
readlinkat readv stat statfs statx write writev"""
WAITING = """clock_getres clock_gettime clock_nanosleep epoll_create1 epoll_ctl epoll_pwait epoll_pwait2
epoll_wait eventfd2 futex futex_wait futex_waitv futex_wake getitimer gettimeofday nanosleep pause pipe pipe2
poll ppoll pselect6 restart_syscall select setitimer alarm time times"""
SIGNALS = """rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
sigaltstack"""
ITSELF = """arch_prctl capget exit exit_group getcpu getegid geteuid getgid getgroups getpgid getpgrp getpid
getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid rseq
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler sched_yield
set_robust_list set_tid_address sysinfo uname wait4 waitid"""
OPENING = {"open": 1, "openat": 2, "openat2": None}  # the place of the flags, which openat2 has in memory
ALLOWED = " ".join([MEMORY, FILES, WAITING, SIGNALS, ITSELF]).split()
ALLOWED_WORDS = {  # call -> index of one argument, and the values allowed for it
    "fcntl": (1, (0, 1, 2, 3, 4, 1030)),  # duplicates and flags; not the owner, who would get signals
    "ioctl": (1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # terminal tests and flags
    "prctl": (0, (15, 16, 0x53564D41)),  # names of threads and of memory
    "prlimit64": (2, (0,)),  # only reading a limit
}
OF_PROGRAMS = [
    "getsockname",
    "recvfrom",
    "setrlimit",
    "shutdown",
    "umask",
]  # sockets come only in pairs; limits go down
OF_PROGRAMS_WORDS = {  # only pairs of AF_UNIX, and what they send to no other address; its own limits
    "socketpair": (0, (1,)),
    "sendto": (4, (0,)),
    "prlimit64": (0, (0,)),
}
NO_MORE_PROCESSES = ("fork", "vfork")
REFUSED = ("socket", "socketpair", "connect", "bind", "execve", "execveat", "kill", "tkill", "tgkill")


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def program(
    of_programs: bool = False,
    may_truncate: bool = True,
    more: Sequence[str] = (),
    more_words: Mapping[str, tuple[int, Sequence[int]]] = {},
    ignored: Sequence[str] = (),
) -> bytes:
    """Returns the filter in the kernel's format. Raises OSError if libseccomp is missing.

    of_programs: also allows pairs of sockets, which event loops need, and limits of the process's own.
    may_truncate: False where Landlock does not stop a file from being truncated as it is opened.
    more: further calls, allowed with all arguments. more_words: further ones, as in ALLOWED_WORDS.
    ignored: calls that do nothing, and succeed.
    """
    library = loaded()
    rules = library.SyscallFilter(library.ERRNO(errno.ENOSYS))
    allowed = [*ALLOWED, *(OF_PROGRAMS if of_programs else []), *more]
    for name in allowed:
        if may_truncate or name not in OPENING:
            add(library, rules, library.ALLOW, name)
        elif place := OPENING[name]:
            add(library, rules, library.ALLOW, name, library.Arg(place, library.MASKED_EQ, os.O_TRUNC, 0))
    words = ALLOWED_WORDS | OF_PROGRAMS_WORDS if of_programs else ALLOWED_WORDS
    for name, (place, values) in [*words.items(), *more_words.items()]:
        for value in values:
            add(library, rules, library.ALLOW, name, library.Arg(place, library.EQ, value))
    for name in ignored:
        add(library, rules, library.ERRNO(0), name)
    is_thread = library.Arg(0, library.MASKED_EQ, CLONE_THREAD, CLONE_THREAD)
    is_process = library.Arg(0, library.MASKED_EQ, CLONE_THREAD, 0)
    add(library, rules, library.ALLOW, "clone", is_thread)
    add(library, rules, library.ERRNO(errno.EAGAIN), "clone", is_process)
    for name in NO_MORE_PROCESSES:
        add(library, rules, library.ERRNO(errno.EAGAIN), name)
    for name in REFUSED:
        if name not in words and name not in allowed:  # else no call that there is, with other arguments
            add(library, rules, library.ERRNO(errno.EACCES), name)
    return exported(rules)


def loaded() -> Any:
    """Returns the module of libseccomp. Raises OSError if it is missing."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as error:
        raise OSError(errno.ENOSYS, f"libseccomp cannot be used: {error}") from error
    return pyseccomp


def exported(rules: Any) -> bytes:
    """Returns a filter of libseccomp in the kernel's format."""
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def restrict(instructions: bytes) -> None:
    """Applies the filter irrevocably to this thread and its children. Requires no_new_privs."""
    filter_ = Program(len(instructions) // INSTRUCTION_BYTES, instructions)
    if LIBC.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(filter_), 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, "this kernel, or this container, refuses a seccomp filter")


def add(library: Any, rules: Any, action: int, name: str, *arguments: Any) -> None:
    number = library.resolve_syscall(library.system_arch(), name)
    if number != UNKNOWN:  # an older libseccomp may not know a name
        rules.add_rule(action, number, *arguments)
