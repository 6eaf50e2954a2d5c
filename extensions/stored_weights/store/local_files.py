"""Reads and removes files of a directory in which anything may lie: links, pipes, devices, directories."""

import errno
import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 2**20
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file to be read, without a buffer. Raises OSError for anything else."""
    descriptor = os.open(path, OPEN)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def read_regular(path: Path, most: int) -> bytes:
    """Returns the content of a regular file. Raises OSError if it is none, or larger than `most` bytes."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
        return file.read(most)


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a regular file, as hex. It reads a chunk at a time."""
    found = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def remove(path: Path) -> None:
    """Removes whatever is there: a directory with all in it, or a file. A link's target stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
