"""Checks whether a run has ended, from files in its directory."""

import fcntl
import time
from pathlib import Path

from pipelinerl.observers import end_path

# A running launcher holds one of these locks, unless the streams are on the user's own Redis server.
LOCKS = ("streams/launcher_events/writer.lock", "redis/lock")
TRY_LOCKS_S = 10.0  # rarely, because a launcher that starts during the check would find its lock taken


def url_path(run_dir: Path) -> Path:
    """Returns the file in which the viewer of a running run tells the launcher its URL."""
    return run_dir / "view" / "url"


class RunEnd:
    """The check: the run has a summary, or its launcher has reported the end or no longer runs."""

    def __init__(self, run_dir: Path):
        self._signs = [run_dir / "summary.json", end_path(run_dir)]
        self._locks = [run_dir / lock for lock in LOCKS]
        self._try_at = 0.0
        self._is_gone = False  # result of the last check for the launcher

    def has_come(self) -> bool:
        if any(sign.exists() for sign in self._signs):
            return True
        now = time.monotonic()
        if now < self._try_at:
            return self._is_gone
        self._try_at = now + TRY_LOCKS_S
        locks = [lock for lock in self._locks if lock.exists()]
        self._is_gone = bool(locks) and not any(_is_held(lock) for lock in locks)
        return self._is_gone


def _is_held(path: Path) -> bool:
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
