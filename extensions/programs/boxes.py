"""Runs one program in namespaces of its own, by bubblewrap.

Beside the interpreter's and the system's libraries a program finds one directory, which is in memory, and
which ends with it. It has no network, and sees no other process. The compiler alone starts further ones.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from contracts.support.die_with_parent import die_with_parent
from extensions.programs import running, statuses
from extensions.programs.messages import KILLED_IN_BOX, Box
from extensions.programs.statuses import Status
from pipelinerl.judging.isolation import Limits, seccomp
from pipelinerl.judging.isolation.environment import SYSTEM
from pipelinerl.judging.isolation.privileges import no_new_privileges

DISK_BYTES = 64 << 20
DISK = "/tmp"  # the directory that a program may write in
GIVEN = "/judged"  # the directory of the program and of what runs it
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
ALONE = ("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts")
ALONE += ("--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--as-pid-1")
ALONE += ("--cap-drop", "ALL")
ARENAS = "MALLOC_ARENA_MAX"  # of glibc, else each thread may have one of 64 MiB
PATIENCE_S = 30
COMPILER = "g++"
# The stack is made larger at the program's start, so that its threads have one of the usual size.
STACK = f"""#include <sys/resource.h>
__attribute__((constructor(101))) static void grow(void) {{
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    if (limit.rlim_max >= {running.STACK_BYTES}) limit.rlim_cur = {running.STACK_BYTES};
    setrlimit(RLIMIT_STACK, &limit);
}}"""
# How lines of the compiler begin that no source has written.
OF_COMPILER = "^(g[+][+]|collect2|cc1plus|as|virtual memory)[ :]"
COMPILE = f"""export LC_ALL=C
echo '{STACK}' > stack.c
{COMPILER} -std=gnu++17 -O2 -pipe -o made -x c++ - -x c stack.c 2> said && exec cat made
grep -E "{OF_COMPILER}" said > own
grep -q -E "signal|[Kk]illed|temporarily unavailable" own && exit {KILLED_IN_BOX}
grep -q -E "out of memory|memory exhausted|Cannot allocate|No space left" own && exit {Status.MEMORY}
grep -q -E " error: |Error: |ld returned 1" said && exit {Status.RAISED}
exit {KILLED_IN_BOX}"""
FOR_COMPILERS = ("/usr/bin", "/usr/include", "/usr/libexec", "/usr/local/include", "/bin")
FOR_COMPILERS += ("/etc/alternatives",)
RUN = f"import sys; sys.path.insert(0, {GIVEN!r}); from extensions.programs.running import main; main()"
OF_FILES = """chdir copy_file_range execve fallocate fchdir fdatasync fgetxattr flistxattr fsync ftruncate
getxattr lgetxattr link linkat listxattr llistxattr mkdir mkdirat pwritev rename renameat renameat2 rmdir
sendfile symlink symlinkat sync_file_range truncate unlink unlinkat"""
LOCKS = {"fcntl": (1, (5, 6, 7))}  # of parts of a file
# Modes and times would be those of the machine's devices, if root runs this. A program alone needs no lock.
IGNORED = "chmod fchmod fchmodat utime utimensat utimes flock"


class Boxes:
    """Prepared boxes of one kind. readable: files and trees beside the system's, for Python.

    Raises OSError with the reason if programs cannot run in namespaces.
    """

    def __init__(self, kind: Box, limits: Limits, readable: Sequence[str]):
        self._kind = kind
        self._limits = limits
        self._bubblewrap = shutil.which("bwrap")
        if self._bubblewrap is None:
            raise OSError("there is no bubblewrap (bwrap); install it")
        if kind is Box.COMPILER and shutil.which(COMPILER) is None:
            raise OSError(f"there is no {COMPILER}; install it")
        more = {Box.PYTHON: readable, Box.BINARY: (), Box.COMPILER: FOR_COMPILERS}[kind]
        self._readable = sorted(path for path in {*SYSTEM, *more} if os.path.exists(path))
        self._filter = b""
        if kind is not Box.COMPILER:
            self._filter = seccomp.program(True, True, OF_FILES.split(), LOCKS, IGNORED.split())
        if why_not := self._refusal():
            raise OSError(why_not)

    def run(self, program: int, status: int, entry: str | None) -> NoReturn:
        """Becomes bubblewrap with the program.

        program: descriptor of its source, or of what was compiled. status: where bubblewrap says its end.
        """
        os.set_inheritable(program, False)
        os.set_inheritable(status, True)
        command = [*self._places(), *self._data(program), *self._calls(), "--json-status-fd", str(status)]
        if os.getpgid(0) != os.getpid():
            os.setsid()
        no_new_privileges()
        die_with_parent()
        self._limits.apply(count_processes=False)
        names = (*running.ENVIRONMENT, ARENAS)
        kept = {name: os.environ[name] for name in names if name in os.environ}
        os.execve(self._bubblewrap, ["bwrap", *command, "--", *self._executed(entry)], kept | {"HOME": DISK})

    def _places(self) -> Iterator[str]:
        yield from ALONE
        yield from ("--size", str(DISK_BYTES), "--tmpfs", DISK, "--chdir", DISK)
        yield from ("--symlink", DISK, "/dev/shm")  # of semaphores
        for path in self._readable:  # after the directory, in which Python itself may be
            yield from ("--ro-bind", path, path)
        for device in DEVICES:
            yield from ("--dev-bind", device, device)
        if self._kind is Box.PYTHON:
            for module in (running, statuses):
                file = str(module.__file__)
                yield from ("--ro-bind", file, f"{GIVEN}/extensions/programs/{Path(file).name}")

    def _data(self, program: int) -> Iterator[str]:
        if self._kind is not Box.COMPILER:
            yield from _copied(program, f"{GIVEN}/program")
            yield from _copied(0, "/dev/stdin")
        yield from ("--remount-ro", "/")

    def _calls(self) -> Iterator[str]:
        if self._filter:
            descriptor = os.memfd_create("filter", 0)
            os.write(descriptor, self._filter)
            os.lseek(descriptor, 0, os.SEEK_SET)
            yield from ("--seccomp", str(descriptor))

    def _executed(self, entry: str | None) -> Sequence[str]:
        if self._kind is Box.PYTHON:
            return [sys.executable, "-I", "-c", RUN, f"{GIVEN}/program", entry or ""]
        if self._kind is Box.BINARY:
            return [f"{GIVEN}/program"]
        return ["/bin/sh", "-c", COMPILE]

    def _refusal(self) -> str:
        """Returns what bubblewrap says if it cannot make the box here, or ""."""
        tried = {Box.PYTHON: [sys.executable, "-I", "-c", ""], Box.COMPILER: [COMPILER, "--version"]}
        if self._kind not in tried:  # what is compiled needs less than the compiler
            return ""
        command = [self._bubblewrap, *self._places(), "--", *tried[self._kind]]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "bubblewrap does not end"
        return done.stderr.strip() or f"bubblewrap ends with {done.returncode}" if done.returncode else ""


def _copied(descriptor: int, place: str) -> Iterator[str]:
    """Yields the words that put what the descriptor holds at a place, to read and to execute."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)  # with a position of its own
    os.set_inheritable(own, True)
    yield from ("--perms", "0555", "--ro-bind-data", str(own), place)
