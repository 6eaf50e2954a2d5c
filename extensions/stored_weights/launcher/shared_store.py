"""The in-memory directory of the store with `weights=shared`.

The launcher creates and removes it, because the launcher outlives all processes that use it. The next
launcher of the same user removes the directory of a launcher that was killed.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from pipelinerl.errors import PlanError
from pipelinerl.paths import OWNER_ALONE

SHARED_MEMORY = Path("/dev/shm")
PLAIN = re.compile(r"[A-Za-z0-9/._~+=,:-]+")
PREFIX = "pipelinerl-"
LOCK = ".launcher"  # file that the launcher locks while it runs


def check_directory(directory: str) -> None:
    """Raises PlanError if the URL of the directory needs escapes, which servers refuse."""
    if not PLAIN.fullmatch(directory):
        raise PlanError(
            f"weights.directory={directory} has a character that a file:// URL cannot have as it is; use "
            "letters, digits, / . _ and -"
        )


def store_name(run_dir: Path, token: str) -> str:
    """Returns the name of a run's store directory, which cannot be guessed without the token."""
    message = f"weights of {run_dir}".encode()
    return PREFIX + blake2b(message, key=token.encode(), digest_size=8).hexdigest()


@contextmanager
def made_store(store: Path) -> Iterator[None]:
    """Creates the store, which only its owner can enter, and removes it when the block ends.

    Raises PlanError if that fails.
    """
    _remove_abandoned(store.parent)
    try:
        lock = _made(store)
    except OSError as error:
        raise PlanError(
            f"weights=shared: {store} cannot be made ({error.strerror}); set weights.directory to "
            "a directory that servers and trainer share"
        ) from error
    try:
        yield
    finally:
        shutil.rmtree(store, ignore_errors=True)
        os.close(lock)


def _made(store: Path) -> int:
    store.mkdir(mode=OWNER_ALONE, parents=True)
    try:
        return _locked(store)
    except OSError:
        shutil.rmtree(store, ignore_errors=True)
        raise


def _locked(store: Path) -> int:
    """Creates a locked file, renames it to its final name, and returns its descriptor."""
    unnamed = store / f"{LOCK}.part"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename(unnamed, store / LOCK)
    return lock


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # it belongs to another user, or is in use
            opened = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
            finally:
                os.close(opened)
