"""Fills a small file system, and makes room in it again."""

import errno
from pathlib import Path

FILLER = "filler"


def fill(directory: Path, leaving: int = 0) -> None:
    """Takes all room there is, but for so many bytes."""
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
