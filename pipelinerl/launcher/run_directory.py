"""The directory of a new run: whether it can be made, and the link to the latest one."""

import os
import tempfile
from pathlib import Path

from contracts.support.files import is_disk_full
from pipelinerl.errors import PlanError
from pipelinerl.paths import OWNER_ALONE

LONGEST_NAME = 255  # bytes of a name in a directory, on every common file system
LONGEST_INSIDE = 128  # bytes of the longest path of a run inside its directory


def absolute(run_dir: Path) -> Path:
    """Returns the absolute path without links. Raises PlanError where they lead in a circle."""
    try:
        return run_dir.resolve(strict=False)
    except (OSError, RuntimeError) as error:
        raise PlanError(
            f"run_dir={run_dir} is a link that leads to itself; set run_dir to another"
        ) from error


def check_run_dir(run_dir: Path, will_be_made: bool = True) -> None:
    """Raises PlanError for a directory that a new run cannot have. Leaves nothing behind.

    will_be_made: whether it is on this machine; a plan may be for another one.
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
            _check_writable(run_dir)
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


def _check_writable(run_dir: Path) -> None:
    there = next(parent for parent in (run_dir, *run_dir.parents) if parent.exists())
    probe = tempfile.mkdtemp(prefix=".pipelinerl-", dir=there)  # permissions do not tell of every file system
    os.rmdir(probe)


def make_run_dir(run_dir: Path) -> None:
    """Makes the directory of a run that begins. Raises PlanError where the file system does not let it."""
    try:
        run_dir.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise PlanError(
            f"run_dir={run_dir} cannot be made: {error.strerror}; set run_dir to another"
        ) from error


def point_latest_at(run_dir: Path) -> None:
    """Replaces the link of an earlier run, and nothing else of that name."""
    latest = run_dir.parent / "latest"
    if latest.is_symlink():
        latest.unlink()
    if not latest.exists():
        latest.symlink_to(run_dir.name)
