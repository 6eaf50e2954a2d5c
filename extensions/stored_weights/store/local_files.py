"""Reads and removes files safely, whatever their type: links, pipes, devices, directories."""

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
    """Opens a regular file for unbuffered reading. Raises OSError for anything else."""
    descriptor = os.open(path, OPEN)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def read_regular(path: Path, most: int) -> bytes:
    """Returns the content of a regular file of at most `most` bytes. Raises OSError for anything else."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
        return file.read(most)


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a regular file, as hex."""
    found = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def remove(path: Path) -> None:
    """Removes a directory tree or a file. Does not follow links."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
