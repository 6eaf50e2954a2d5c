"""The lock of a store's directory, for changes of manifests and objects."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Locks the store within the block. Other processes and threads keep the lock only for moments."""
    (store / "writing").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(store / "writing" / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
