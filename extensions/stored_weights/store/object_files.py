"""The files named by their SHA-256 in a puller's directory.

A file is trusted if this process has hashed it and it has not changed since. Other files are hashed before
their first use, and removed if the SHA-256 is wrong.
"""

import asyncio
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from contracts.channel import PullProgress
from extensions.stored_weights.store.local_files import remove, sha256_of
from extensions.stored_weights.store.part_file import PartFile, Wanted

Stamp = tuple[int, int, int, int]  # device, inode, size and mtime: if they are equal, the file is unchanged


def stamp(path: Path) -> Stamp:
    """Returns the stamp of a file. Raises OSError if it does not exist."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class ObjectFiles:
    """The complete files in `objects/`, and the files in `parts/` that are being received."""

    def __init__(self, directory: Path):
        self._objects = directory / "objects"
        self._parts = directory / "parts"
        self._hashed: dict[str, Stamp] = {}
        for each in (self._objects, self._parts):
            each.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path:
        return self._objects / sha256

    def bytes_here(self, wanted: Wanted) -> int:
        """Returns the number of local bytes of a file, complete or not, without hashing them."""
        if _size(self.path(wanted.sha256)) == wanted.bytes:
            return wanted.bytes
        return min(_size(self._part_path(wanted)), wanted.bytes)

    async def is_here(self, wanted: Wanted) -> bool:
        """Returns True if the complete file is local. Removes it if its SHA-256 is wrong."""
        path = self.path(wanted.sha256)
        try:
            found = stamp(path)
            if self._hashed.get(wanted.sha256) == found:
                return True
            is_right = await asyncio.to_thread(sha256_of, path) == wanted.sha256
        except FileNotFoundError:
            return False
        except OSError:  # no regular file
            is_right = False
        if is_right:
            self._hashed[wanted.sha256] = found
        else:
            remove(path)
        return is_right

    def distrust(self, files: Iterable[Wanted]) -> None:
        """Makes `is_here` hash these files again."""
        for wanted in files:
            self._hashed.pop(wanted.sha256, None)

    def open_part(self, wanted: Wanted, progress: PullProgress) -> PartFile:
        return PartFile(self._part_path(wanted), wanted, progress)

    def drop_part(self, wanted: Wanted) -> None:
        self._part_path(wanted).unlink(missing_ok=True)

    def adopt(self, part: PartFile) -> None:
        """Renames a complete and verified part to an object."""
        path = self.path(part.wanted.sha256)
        os.replace(part.path, path)
        self._hashed[part.wanted.sha256] = stamp(path)

    def keep_only(self, names: Collection[str]) -> None:
        """Deletes all files except those with these hashes."""
        for path in [*self._objects.iterdir(), *self._parts.iterdir()]:
            if path.name not in names:
                remove(path)
                self._hashed.pop(path.name, None)

    def _part_path(self, wanted: Wanted) -> Path:
        return self._parts / wanted.sha256


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
