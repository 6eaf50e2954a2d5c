"""The directory of a run: checks whether it can be made, links to the latest one, and reports a full disk.

While the disk is full, the processes of a run wait. The console must report it, because their logs may be on
that disk.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.support.files import is_disk_full
from contracts.support.messages import one_line
from pipelinerl.errors import PlanError
from pipelinerl.launcher.terminal import print_message
from pipelinerl.paths import OWNER_ALONE

LONGEST_NAME = 255  # bytes of a name in a directory, on every common file system
LONGEST_INSIDE = 128  # bytes of the longest path of a run inside its directory
LEAST_BYTES = 1 << 20  # a disk with fewer free bytes counts as full
EVERY_S = 1.0  # time between two checks


def absolute(run_dir: Path) -> Path:
    """Returns the absolute path without links. Raises PlanError for a cycle of links."""
    try:
        return run_dir.resolve(strict=False)
    except (OSError, RuntimeError) as error:
        raise PlanError(
            f"run_dir={run_dir} is a link that leads to itself; set run_dir to another"
        ) from error


def check_run_dir(run_dir: Path, will_be_made: bool = True) -> None:
    """Raises PlanError for a directory that a new run cannot have.

    will_be_made: False for a plan, which may be for another machine.
    """
    if too_long := next((part for part in run_dir.parts if len(os.fsencode(part)) > LONGEST_NAME), None):
        raise PlanError(
            f"run_dir: a name in it has {len(os.fsencode(too_long))} bytes, and {LONGEST_NAME} is the most: "
            f"{too_long[:40]}..."
        )
    longest = os.pathconf("/", "PC_PATH_MAX") - LONGEST_INSIDE
    if len(os.fsencode(run_dir)) > longest:
        raise PlanError(f"run_dir has {len(os.fsencode(run_dir))} bytes, and {longest} is the most")
    try:
        _check_free(run_dir)
        if will_be_made:
            there = next(parent for parent in (run_dir, *run_dir.parents) if parent.exists())
            os.rmdir(tempfile.mkdtemp(prefix=".pipelinerl-", dir=there))  # permissions may not tell
    except OSError as error:
        if is_disk_full(error):
            raise
        raise PlanError(
            f"run_dir={run_dir} cannot be used: {error.strerror}; set run_dir to another"
        ) from error


def _check_free(run_dir: Path) -> None:
    if run_dir.exists():
        if not run_dir.is_dir():
            raise PlanError(f"run_dir={run_dir} is a file; set run_dir to a new directory")
        if any(run_dir.iterdir()):
            raise PlanError(
                f"run directory {run_dir} exists and is never overwritten; set run_dir to a new one"
            )
    there = next(parent for parent in (run_dir, *run_dir.parents) if parent.exists())
    if not there.is_dir():
        raise PlanError(f"run_dir={run_dir} lies under {there}, which is a file; set run_dir to another")


def make_run_dir(run_dir: Path) -> None:
    try:
        run_dir.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise PlanError(
            f"run_dir={run_dir} cannot be made: {error.strerror}; set run_dir to another"
        ) from error


def point_latest_at(run_dir: Path) -> None:
    """Links `latest` to the directory, unless `latest` exists and is no link."""
    latest = run_dir.parent / "latest"
    if latest.is_symlink():
        latest.unlink()
    if not latest.exists():
        latest.symlink_to(run_dir.name)


@contextmanager
def naming_full_disk(run_dir: Path) -> Iterator[None]:
    """Raises PlanError in place of the OSError of a full disk."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise PlanError(_full_message(Path(error.filename or run_dir))) from error


def failure_message(failure: BaseException, run_dir: Path) -> str:
    """Returns the failure on one line, which also reports a full disk."""
    line = one_line(failure)
    full = _full_message(run_dir)
    is_full = shutil.disk_usage(run_dir).free < LEAST_BYTES
    return f"{line}; {full}" if is_full and full not in line else line


def _full_message(path: Path) -> str:
    return f"the disk of {path} is full: make room there; resume=true goes on with a run that has begun"


class DiskWatch:
    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._is_full = False
        self._next = 0.0

    def check(self) -> None:
        """Prints a message when the disk becomes full, or no longer is. Checks at most every `EVERY_S`."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        enough = 2 * LEAST_BYTES if self._is_full else LEAST_BYTES
        is_full = shutil.disk_usage(self._run_dir).free < enough
        if is_full and not self._is_full:
            print_message(f"the disk of {self._run_dir} is full: what has to be written there waits for room")
        if self._is_full and not is_full:
            print_message(f"the disk of {self._run_dir} has room again")
        self._is_full = is_full
