"""A file in `parts/` that is being received, with an incremental SHA-256."""

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from contracts.channel import PullProgress

CHUNK_BYTES = 2**20
EARLIER = "earlier"  # source of the bytes that were found on the disk


@dataclass(frozen=True)
class Wanted:
    """A file of the store: its name, which is its SHA-256, and its size."""

    sha256: str
    bytes: int


class PartFile:
    """The bytes of a file that have been received. Only one object may exist for a path at a time."""

    def __init__(self, path: Path, wanted: Wanted, progress: PullProgress):
        self.wanted = wanted
        self.path = path
        self.size = 0
        self.sources: set[str] = set()  # sources of its bytes
        self.single_source = False  # True after bytes of several sources had the wrong SHA-256
        self._progress = progress
        self._hash = hashlib.sha256()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @property
    def missing(self) -> int:
        return self.wanted.bytes - self.size

    @property
    def is_right(self) -> bool:
        """True if the file is complete and its SHA-256 is right."""
        return self.missing == 0 and self._hash.hexdigest() == self.wanted.sha256

    async def hash_existing(self) -> None:
        """Hashes the bytes of an earlier attempt, so that the transfer resumes after them."""
        if os.fstat(self._file).st_size > self.wanted.bytes:
            self.restart()
        while chunk := os.pread(self._file, CHUNK_BYTES, self.size):
            self._count(chunk, EARLIER)
            await asyncio.sleep(0)  # lets other transfers continue
        if self.missing == 0 and not self.is_right:
            self.restart()

    def append(self, data: bytes, source: str) -> None:
        """Writes the next bytes. Raises OSError if the disk is full. Discard the file then."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, self.size + len(data) - len(rest))
            rest = rest[written:]
        self._count(data, source)
        self._progress.bytes_fetched += len(data)

    def _count(self, data: bytes, source: str) -> None:
        self._hash.update(data)
        self.size += len(data)
        self.sources.add(source)
        self._progress.bytes_done += len(data)

    def restart(self) -> None:
        """Discards all bytes."""
        os.ftruncate(self._file, 0)
        self._progress.bytes_done -= self.size
        self.size = 0
        self.sources = set()
        self._hash = hashlib.sha256()

    def close(self) -> None:
        """Closes the file, which keeps its bytes for a later attempt."""
        os.close(self._file)
