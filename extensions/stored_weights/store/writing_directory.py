"""Where the writer of a run keeps unfinished files: a directory in the store that it alone uses.

Files are renamed from here into the store. What a killed writer left here is removed by the next writer of
any run.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from extensions.stored_weights.store.store_lock import LOCK, locked


class WritingDirectory:
    """The directory of one writer, until it is closed. A second writer of the run is refused."""

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
        """Removes what writers that have ended left, of this run and of others."""
        for path in self.path.iterdir():
            if path.name != LOCK:
                _remove(path)
        for other in self.path.parent.iterdir():
            if other == self.path or not (other / LOCK).is_file():  # not one of a writer
                continue
            lock = _lock_now(other)
            if lock is not None:
                _remove(other)
                os.close(lock)

    def new(self, prefix: str) -> Path:
        """Returns a new directory for files that belong together."""
        return Path(tempfile.mkdtemp(prefix=prefix, dir=self.path))

    def close(self) -> None:
        """Removes the directory. It may be called again."""
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
    """Returns the locked descriptor of a directory, which is created; None if another process has it."""
    directory.mkdir(exist_ok=True)
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
