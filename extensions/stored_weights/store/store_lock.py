"""The lock of a store's directory. The process that holds it may change manifests and objects."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Waits for other processes and threads that publish or delete. They hold the lock for moments only."""
    (store / "writing").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(store / "writing" / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
