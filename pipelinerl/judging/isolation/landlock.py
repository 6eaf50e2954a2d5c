"""Restricts a process to given paths and TCP ports, by Landlock (Linux 5.13; see linux/landlock.h)."""

import ctypes
import os
from collections.abc import Sequence

LIBC = ctypes.CDLL(None, use_errno=True)
CREATE_RULESET = 444  # the numbers are the same on every architecture
ADD_RULE = 445
RESTRICT_SELF = 446
VERSION = 1  # flag of CREATE_RULESET: asks for the version of the interface
PATH_BENEATH = 1  # kinds of rules
TCP_PORT = 2
EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIRECTORY = 1 << 3
MAKE_DEVICES = 1 << 6 | 1 << 11
TRUNCATE = 1 << 14
IOCTL_ON_DEVICES = 1 << 15
WITH_TRUNCATION = 3  # the version from which that right exists
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # version -> number of file rights; 16 in newer ones
BIND_AND_CONNECT_TCP = 0b11  # from version 4
CONNECT_TCP = 0b10
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # from version 6
WITH_SCOPES = 6


class Handled(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32)]


class Port(ctypes.Structure):
    _fields_ = [("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64)]


def version() -> int:
    """Returns the version of the kernel's Landlock. Raises OSError if Landlock is not available."""
    try:
        return _called(CREATE_RULESET, None, 0, VERSION)
    except OSError as error:
        raise OSError(error.errno, "this kernel, or this container, has no Landlock") from error


def ruleset(
    readable: Sequence[str],
    writable: Sequence[str] = (),
    executable: bool = False,
    owned: Sequence[str] = (),
    ports: Sequence[int] = (),
) -> int:
    """Returns the descriptor of a ruleset that allows only reading the given files and directory trees.

    writable: files that can also be written to. executable: True if what is readable can be executed.
    owned: directory trees in which everything is allowed, except devices. ports: TCP ports to connect to.
    """
    known = version()
    every = (1 << RIGHTS.get(known, 16)) - 1
    handled = Handled(every, BIND_AND_CONNECT_TCP, ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 8 if known < 4 else 16 if known < 6 else 24
    rules = _called(CREATE_RULESET, ctypes.byref(handled), size, 0)
    reading = READ_FILE | (EXECUTE if executable else 0)
    for path in readable:
        if os.path.exists(path):
            _allow(rules, path, reading | READ_DIRECTORY if os.path.isdir(path) else reading)
    for path in writable:
        _allow(rules, path, READ_FILE | WRITE_FILE | (TRUNCATE if known >= WITH_TRUNCATION else 0))
    for path in owned:
        _allow(rules, path, every & ~(MAKE_DEVICES | IOCTL_ON_DEVICES))
    for port in ports:
        _called(ADD_RULE, rules, TCP_PORT, ctypes.byref(Port(CONNECT_TCP, port)), 0)
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
