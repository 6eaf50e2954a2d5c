"""Fills a small file system, and frees its space again."""

import errno
from pathlib import Path

FILLER = "filler"


def fill(directory: Path, leaving: int = 0) -> None:
    """Uses all free space except `leaving` bytes."""
    with (directory / FILLER).open("ab", buffering=0) as file:
        for size in (2**20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
        file.truncate(file.tell() - leaving)


def make_room(directory: Path) -> None:
    (directory / FILLER).unlink()
