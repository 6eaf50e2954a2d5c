"""A full disk: named in one line instead of a traceback, and told on the console while a run goes on.

Its processes wait then, and their logs may lie on that disk.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.support.files import is_disk_full
from contracts.support.messages import one_line
from pipelinerl.errors import PlanError
from pipelinerl.launcher.messages import say

LEAST_BYTES = 1 << 20  # a disk with less is full: a record may find no room
EVERY_S = 1.0  # between two looks


@contextmanager
def naming_full_disk(run_dir: Path) -> Iterator[None]:
    """Raises PlanError in the place of the error of writing to a full disk."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise PlanError(_words(Path(error.filename or run_dir))) from error


def told(failure: BaseException, run_dir: Path) -> str:
    """Returns a failure as one line, which says so if the disk of the run is full."""
    line = one_line(failure)
    words = _words(run_dir)
    is_full = shutil.disk_usage(run_dir).free < LEAST_BYTES
    return f"{line}; {words}" if is_full and words not in line else line


def _words(path: Path) -> str:
    return f"the disk of {path} is full: make room there; resume=true goes on with a run that has begun"


class DiskWatch:
    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._is_full = False
        self._next = 0.0

    def look(self) -> None:
        """Says that the disk has become full, or that it has room again. Looks at most every `EVERY_S`."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        enough = 2 * LEAST_BYTES if self._is_full else LEAST_BYTES
        is_full = shutil.disk_usage(self._run_dir).free < enough
        if is_full and not self._is_full:
            say(f"the disk of {self._run_dir} is full: what has to be written there waits for room")
        if self._is_full and not is_full:
            say(f"the disk of {self._run_dir} has room again")
        self._is_full = is_full
