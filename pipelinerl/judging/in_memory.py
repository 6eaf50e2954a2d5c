"""Files in memory, by which a confined process is given data."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@contextmanager
def in_memory(data: bytes) -> Iterator[int]:
    """Yields the descriptor of a file with this content, which has no name and cannot be changed."""
    file = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(file, data)
        os.lseek(file, 0, os.SEEK_SET)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        yield file
    finally:
        os.close(file)
