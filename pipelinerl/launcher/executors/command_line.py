"""Changes the command line and environment of this process in /proc, and so in `ps` and `top`.

Called by a forked job. The kernel reads both from the process's memory, between addresses that the process
may set (PR_SET_MM_MAP of prctl(2)).
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_MM = 35  # <linux/prctl.h>
PR_SET_MM_MAP = 14
NO_FILE = 0xFFFFFFFF  # the program's file stays the same
# Fields of /proc/self/stat, counted from the state, by the names of struct prctl_mm_map.
FIELDS = dict(start_code=23, end_code=24, start_stack=25, start_data=42, end_data=43, start_brk=44)
ADDRESSES = """
start_code end_code start_data end_data start_brk brk start_stack arg_start arg_end env_start env_end auxv
"""
MEMORY: list[ctypes.Array] = []  # keeps the memory that the kernel reads


class Map(ctypes.Structure):
    """The kernel's struct prctl_mm_map."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ADDRESSES.split()),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def show_as(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Changes the command line and environment in /proc. Returns False, unchanged, if the kernel refuses."""
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    libc.sbrk.argtypes = [ctypes.c_ssize_t]
    shown = Map(exe_fd=NO_FILE, brk=libc.sbrk(0))
    stat = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    for name, field in FIELDS.items():
        setattr(shown, name, int(stat[field]))
    shown.arg_start, shown.arg_end = _store(command)
    shown.env_start, shown.env_end = _store([f"{name}={value}" for name, value in environment.items()])
    given = [PR_SET_MM, PR_SET_MM_MAP, ctypes.addressof(shown), ctypes.sizeof(shown), 0]
    return libc.prctl(*map(ctypes.c_ulong, given)) == 0


def _store(texts: Sequence[str]) -> tuple[int, int]:
    """Stores the texts as C strings, and returns the addresses of their beginning and end."""
    data = b"".join(os.fsencode(text) + b"\0" for text in texts)
    MEMORY.append(ctypes.create_string_buffer(data, len(data)))
    start = ctypes.addressof(MEMORY[-1])
    return start, start + len(data)
