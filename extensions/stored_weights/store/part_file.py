"""A file that is being received: it grows in `parts/`, and its SHA-256 with it."""

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from contracts.channel import PullProgress

CHUNK_BYTES = 2**20
EARLIER = "earlier"  # stands for whoever gave the bytes that were found on the disk


@dataclass(frozen=True)
class Wanted:
    """A file of the store: its name, which is its SHA-256, and its size."""

    sha256: str
    bytes: int


class PartFile:
    """The bytes of a file that are here so far. Only one of these may exist for a path at a time."""

    def __init__(self, path: Path, wanted: Wanted, progress: PullProgress):
        self.wanted = wanted
        self.path = path
        self.size = 0
        self.givers: set[str] = set()  # the sources that its bytes came from
        self.one_giver = False  # whether bytes of several sources have turned out not to fit together
        self._progress = progress
        self._hash = hashlib.sha256()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @property
    def missing(self) -> int:
        return self.wanted.bytes - self.size

    @property
    def is_right(self) -> bool:
        """Whether the file is complete and has the SHA-256 that it should have."""
        return self.missing == 0 and self._hash.hexdigest() == self.wanted.sha256

    async def read_what_is_here(self) -> None:
        """Hashes the bytes of an earlier attempt, so that the transfer resumes after them."""
        if os.fstat(self._file).st_size > self.wanted.bytes:
            self.restart()
        while chunk := os.pread(self._file, CHUNK_BYTES, self.size):
            self._count(chunk, EARLIER)
            await asyncio.sleep(0)  # other transfers go on meanwhile
        if self.missing == 0 and not self.is_right:
            self.restart()

    def append(self, data: bytes, giver: str) -> None:
        """Writes the next bytes. Raises OSError if the disk is full, and then the file is of no use."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, self.size + len(data) - len(rest))
            rest = rest[written:]
        self._count(data, giver)
        self._progress.bytes_fetched += len(data)

    def _count(self, data: bytes, giver: str) -> None:
        self._hash.update(data)
        self.size += len(data)
        self.givers.add(giver)
        self._progress.bytes_done += len(data)

    def restart(self) -> None:
        """Drops all bytes."""
        os.ftruncate(self._file, 0)
        self._progress.bytes_done -= self.size
        self.size = 0
        self.givers = set()
        self._hash = hashlib.sha256()

    def close(self) -> None:
        """Closes the file. What is there stays for a later attempt."""
        os.close(self._file)
