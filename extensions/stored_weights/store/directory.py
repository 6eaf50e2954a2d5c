"""The directory in which a server stores fetched weights. One process uses it at a time.

objects/   complete files, by SHA-256
parts/     files that are being received
versions/  assembled versions
lock       locked by the process that uses the directory
"""

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from extensions.stored_weights.store.assembly import AssembledVersions
from extensions.stored_weights.store.errors import StoreError
from extensions.stored_weights.store.object_files import ObjectFiles

LOCK_POLL_S = 0.02


class DirectoryInUseError(StoreError):
    """Raised if another process uses the directory."""

    word = "directory"


@dataclass
class Claim:
    """The files of the directory that one puller needs."""

    versions: Collection[str] = field(default_factory=set)  # names of directories
    objects: Collection[str] = field(default_factory=set)  # SHA-256


class WeightDirectory:
    """The files of a directory. All pullers of a process that use the directory share one object."""

    _opened: dict[Path, "WeightDirectory"] = {}
    _opening = threading.Lock()

    def __init__(self, path: Path):
        self._path = path
        self._users = 0
        self._fetching = threading.Lock()  # locked while a version is fetched
        self._claiming = threading.Lock()
        self._claims: dict[int, Claim] = {}
        self._lock = _locked(path)
        try:
            self.objects = ObjectFiles(path)
            self.versions = AssembledVersions(path, self.objects)
        except BaseException:
            os.close(self._lock)
            raise

    @classmethod
    def open(cls, path: Path) -> "WeightDirectory":
        """Opens the directory, and creates it if missing. Raises DirectoryInUseError or OSError."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve()
        with cls._opening:
            directory = cls._opened.get(path) or cls(path)
            cls._opened[path] = directory
            directory._users += 1
            return directory

    def close(self, claimant: object) -> None:
        """Ends a puller's use of the directory. The last one unlocks it for other processes."""
        with self._claiming:
            self._claims.pop(id(claimant), None)
        with self._opening:
            self._users -= 1
            if self._users == 0:
                del self._opened[self._path]
                os.close(self._lock)

    @asynccontextmanager
    async def exclusive_fetch(self) -> AsyncIterator[None]:
        """Waits until no other puller of this process fetches. It polls, because pullers have other loops."""
        while not self._fetching.acquire(blocking=False):
            await asyncio.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            self._fetching.release()

    def claim(self, claimant: object, claim: Claim) -> None:
        """Replaces the claim of a puller."""
        with self._claiming:
            self._claims[id(claimant)] = claim

    def sweep(self) -> None:
        """Deletes the files that no puller claims."""
        with self._claiming:
            claims = list(self._claims.values())
            self.versions.keep_only({name for claim in claims for name in claim.versions})
            self.objects.keep_only({name for claim in claims for name in claim.objects})


def _locked(path: Path) -> int:
    """Returns the lock's descriptor. Raises DirectoryInUseError if another process has locked it."""
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise DirectoryInUseError(f"{path} is used by another process: name another directory") from error
    return descriptor
