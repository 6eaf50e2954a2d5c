"""The directory in the store for the temporary files of one run's writer.

Files are renamed from it into the store. The next writer of any run removes the files of a killed writer.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from extensions.stored_weights.store.store_lock import LOCK, locked


class WritingDirectory:
    """The directory of one writer, locked until `close`."""

    def __init__(self, store: Path, run: str):
        """Raises ValueError if another process writes versions of this run into the store."""
        self._store = store
        self.path = store / "writing" / run
        with locked(store):
            self._lock = _lock_now(self.path)
            if self._lock is None:
                raise ValueError(f"another process writes versions of {run} into {store}")
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Removes the files of writers that have ended, of this run and of others."""
        for path in self.path.iterdir():
            if path.name != LOCK:
                _remove(path)
        for other in self.path.parent.iterdir():
            if other == self.path or not (other / LOCK).is_file():  # not a writer's directory
                continue
            lock = _lock_now(other)
            if lock is not None:
                _remove(other)
                os.close(lock)

    def new(self, prefix: str) -> Path:
        """Returns a new subdirectory."""
        return Path(tempfile.mkdtemp(prefix=prefix, dir=self.path))

    def close(self) -> None:
        """Removes the directory. Further calls do nothing."""
        if self._lock is None:
            return
        with locked(self._store):
            _remove(self.path)
            os.close(self._lock)
            self._lock = None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _lock_now(directory: Path) -> int | None:
    """Creates and locks a directory. Returns the lock's descriptor, or None if another process has it."""
    directory.mkdir(exist_ok=True)
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
