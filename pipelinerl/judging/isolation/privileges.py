"""What a process may do by who it is: root's powers are given up, and the memory is closed to equals.

Called by `confine` and by the judging service. Must not know workers or verdicts.
"""

import ctypes
import os
import pwd
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from contracts.support.die_with_parent import die_with_parent

LIBC = ctypes.CDLL(None, use_errno=True)
NOBODY = 65534
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CAPABILITIES_VERSION = 0x20080522
DAC_READ_SEARCH = 1 << 2  # the capability to read what root reads
PATIENCE_S = 60  # with an import


class CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("process", ctypes.c_int)]


class Capabilities(ctypes.Structure):
    """The sets of 32 capabilities, as bits."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def drop_privileges(module: str) -> str | None:
    """Becomes the user nobody where this is root and nobody can import `module`.

    Returns why it stays root, in words, or None. Another user's process stays what it is. One that has become
    nobody ends with its parent.
    """
    if os.geteuid():
        return None
    if not _imports_as_nobody(module):
        return f"judging stays root: the user nobody cannot read {sys.prefix} or what it needs"
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    die_with_parent()  # the kernel forgets it when a process becomes another user
    return None


def undumpable() -> None:
    """Closes this process's memory and environment to other processes of its user."""
    _prctl(PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Makes this process the parent of all descendants whose own parent ends."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def first_when_memory_ends() -> None:
    """Has the kernel end this process and its forks before others when the machine is out of memory."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def no_new_privileges() -> None:
    """Lets no program that is executed from here have more rights than this process."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Gives up root's powers but that to read, which libraries in a closed directory need.

    Without them the kernel keeps the environment of other processes of root from this one.
    """
    header = CapabilityHeader(CAPABILITIES_VERSION, 0)
    sets = (Capabilities * 2)()
    _check(LIBC.capget(ctypes.byref(header), sets))
    kept = sets[0].permitted & DAC_READ_SEARCH
    left = (Capabilities * 2)(Capabilities(kept, kept, 0))
    _check(LIBC.capset(ctypes.byref(header), left))


def _imports_as_nobody(module: str) -> bool:
    try:
        pwd.getpwuid(NOBODY)
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            timeout=PATIENCE_S,
        )
    except (KeyError, OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _prctl(option: int, value: int) -> None:
    _check(LIBC.prctl(option, value, 0, 0, 0))


def _check(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
