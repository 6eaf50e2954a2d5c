"""Runs one program in namespaces of its own, by bubblewrap.

Beside the interpreter's and the system's libraries the program finds one directory, which is in memory, and
which ends with it. It has no network, sees no other process, and starts none.
"""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from contracts.support.die_with_parent import die_with_parent
from extensions.programs import running, statuses
from extensions.programs.messages import Box
from pipelinerl.judging.isolation import Limits, seccomp
from pipelinerl.judging.isolation.environment import SYSTEM
from pipelinerl.judging.isolation.privileges import no_new_privileges

DISK_BYTES = 64 << 20
DISK = "/tmp"  # the directory that a program may write in
GIVEN = "/judged"  # the directory of the program and of what runs it
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
ALONE = ("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts")
ALONE += ("--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--as-pid-1")
PATIENCE_S = 30
COMPILER = "g++"
COMPILE = f"{COMPILER} -std=gnu++17 -O2 -pipe -x c++ -o {DISK}/made - && cat {DISK}/made"
FOR_COMPILERS = (
    "/usr/bin",
    "/usr/include",
    "/usr/libexec",
    "/usr/local/include",
    "/bin",
    "/etc/alternatives",
)
RUN = f"import sys; sys.path.insert(0, {GIVEN!r}); from extensions.programs.running import main; main()"
OF_FILES = """chdir chmod copy_file_range execve fallocate fchdir fchmod fchmodat fcntl fdatasync flock fsync
ftruncate link linkat mkdir mkdirat pwritev rename renameat renameat2 rmdir sendfile symlink symlinkat
sync_file_range truncate umask unlink unlinkat utime utimensat utimes"""


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
        if why_not := _refusal(self._bubblewrap):
            raise OSError(why_not)
        more = {Box.PYTHON: readable, Box.BINARY: (), Box.COMPILER: FOR_COMPILERS}[kind]
        self._readable = sorted(path for path in {*SYSTEM, *more} if os.path.exists(path))
        self._filter = b"" if kind is Box.COMPILER else seccomp.program(True, more=OF_FILES.split())

    def run(self, program: int, status: int, entry: str | None) -> NoReturn:
        """Becomes bubblewrap with the program.

        program: descriptor of its source, or of what was compiled. status: where bubblewrap says its end.
        """
        os.set_inheritable(program, False)
        os.set_inheritable(status, True)
        command = [*ALONE, "--json-status-fd", str(status), *self._files(program), *self._calls()]
        if os.getpgid(0) != os.getpid():
            os.setsid()
        no_new_privileges()  # bubblewrap drops capabilities, which root needs for the map of users
        die_with_parent()
        self._limits.apply(count_processes=False)
        if self._kind is Box.BINARY:  # it is that of each thread too, so Python sets it later
            resource.setrlimit(resource.RLIMIT_STACK, running.stack_limits())
        os.execv(self._bubblewrap, ["bwrap", *command, "--", *self._executed(entry)])

    def _files(self, program: int) -> Iterator[str]:
        for path in self._readable:
            yield from ("--ro-bind", path, path)
        for device in DEVICES:
            yield from ("--dev-bind", device, device)
        if self._kind is Box.PYTHON:
            for module in (running, statuses):
                file = str(module.__file__)
                yield from ("--ro-bind", file, f"{GIVEN}/extensions/programs/{Path(file).name}")
        if self._kind is not Box.COMPILER:
            yield from _data(program, f"{GIVEN}/program")
            yield from _data(0, "/dev/stdin")
        yield from ("--size", str(DISK_BYTES), "--tmpfs", DISK, "--chdir", DISK, "--setenv", "HOME", DISK)
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


def _refusal(bubblewrap: str) -> str:
    """Returns what bubblewrap says if it cannot make namespaces here, or ""."""
    command = [bubblewrap, *ALONE, "--ro-bind", "/", "/", "--", "/bin/true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return "bubblewrap does not end"
    return done.stderr.strip() or f"bubblewrap ends with {done.returncode}" if done.returncode else ""


def _data(descriptor: int, place: str) -> Iterator[str]:
    """Yields the words that put what the descriptor holds at a place, to read and to execute."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)  # with a position of its own
    os.set_inheritable(own, True)
    yield from ("--perms", "0555", "--ro-bind-data", str(own), place)
