"""Restricts a process to reading given paths, by Landlock (Linux 5.13; see linux/landlock.h)."""

import ctypes
import os
from collections.abc import Sequence

LIBC = ctypes.CDLL(None, use_errno=True)
CREATE_RULESET = 444  # the numbers are the same on every architecture
ADD_RULE = 445
RESTRICT_SELF = 446
VERSION = 1  # flag of CREATE_RULESET: asks for the version of the interface
PATH_BENEATH = 1  # kind of rule
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIRECTORY = 1 << 3
TRUNCATE = 1 << 14
WITH_TRUNCATION = 3  # the version from which that right exists
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # version -> number of file rights; 16 in newer ones
BIND_AND_CONNECT_TCP = 0b11  # from version 4
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # from version 6


class Handled(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32)]


def version() -> int:
    """Returns the version of the kernel's Landlock. Raises OSError if Landlock is not available."""
    try:
        return _called(CREATE_RULESET, None, 0, VERSION)
    except OSError as error:
        raise OSError(error.errno, "this kernel, or this container, has no Landlock") from error


def ruleset(readable: Sequence[str], writable: Sequence[str] = ()) -> int:
    """Returns the descriptor of a ruleset that allows only reading the given files and directory trees.

    writable: files that can also be written to.
    """
    known = version()
    handled = Handled((1 << RIGHTS.get(known, 16)) - 1, BIND_AND_CONNECT_TCP, ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 8 if known < 4 else 16 if known < 6 else 24
    rules = _called(CREATE_RULESET, ctypes.byref(handled), size, 0)
    for path in readable:
        if os.path.exists(path):
            _allow(rules, path, READ_FILE | READ_DIRECTORY if os.path.isdir(path) else READ_FILE)
    for path in writable:
        _allow(rules, path, READ_FILE | WRITE_FILE | (TRUNCATE if known >= WITH_TRUNCATION else 0))
    return rules


def restrict(rules: int) -> None:
    """Applies the ruleset irrevocably to this thread and its children. Requires no_new_privs."""
    _called(RESTRICT_SELF, rules, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _called(ADD_RULE, rules, PATH_BENEATH, ctypes.byref(Beneath(rights, opened)), 0)
    finally:
        os.close(opened)


def _called(number: int, *arguments: object) -> int:
    result = LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return int(result)
