"""Drops the privileges of a process, and protects its memory from other processes of its user."""

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
PATIENCE_S = 60  # longest time of an import


class CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("process", ctypes.c_int)]


class Capabilities(ctypes.Structure):
    """Three sets of 32 capabilities, as bits."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def drop_privileges(module: str) -> str | None:
    """Switches from root to the user nobody, if that user can import `module`.

    Returns a message if the process remains root, else None. After the switch the process ends with its
    parent.
    """
    if os.geteuid():
        return None
    if not _imports_as_nobody(module):
        return f"judging stays root: the user nobody cannot read {sys.prefix} or what it needs"
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    die_with_parent()  # the kernel clears the setting when the user changes
    return None


def undumpable() -> None:
    """Prevents other processes of the user from reading this process's memory and environment."""
    _prctl(PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Makes this process the parent of all descendants whose parent ends."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def first_when_memory_ends() -> None:
    """Makes the kernel kill this process and its forks first if the machine runs out of memory."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def no_new_privileges() -> None:
    """Prevents executed programs from gaining privileges."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drops root's capabilities except reading any file, which libraries in private directories need.

    Without the others, this process cannot read the environment of root's other processes.
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
