"""Copies a run to a second place, from which it can be resumed (`checkpoint.copy_to`).

A copy is made after each checkpoint, when its files and the streams are on the disk. A file that has changed
is copied whole. What completes a checkpoint comes last. After it, what the run has removed is removed.
"""

import contextlib
import logging
import os
import shutil
from pathlib import Path

from pipelinerl.config import FILES, RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.training.checkpoints import Checkpoints

log = logging.getLogger(__name__)
ORIGINAL = "copy_of"  # the file of a copy that names its run
OF_A_LIVE_RUN = ("heartbeats", "pulled", "weights", "final", "writer.lock", ORIGINAL)  # are not copied
POSITION = "position.json"
UNFINISHED = ".copying"


def check_copy(config: RunConfig, run_dir: Path) -> None:
    """Raises PlanError if the run cannot be copied, or its second place holds something else."""
    checkpoint = config.checkpoint
    if checkpoint.copy_to is None:
        return
    given = f"checkpoint.copy_to={checkpoint.copy_to}"
    target = Path(checkpoint.copy_to).resolve()
    if checkpoint.every is None:
        raise PlanError(f"{given}: a run without checkpoints is never copied; set checkpoint.every")
    if config.streams.target != FILES:
        raise PlanError(f"{given}: only streams in files are copied; set streams=files")
    if target.is_relative_to(run_dir) or run_dir.is_relative_to(target):
        raise PlanError(f"{given}: a run is not copied into its own directory, or around it; name another")
    if target.exists() and _original(target) != str(run_dir):
        raise PlanError(f"{given}: it is no copy of {run_dir}; name a directory that does not exist yet")
    parent = next(parent for parent in (target, *target.parents) if parent.exists())
    if not os.access(parent, os.W_OK):
        raise PlanError(f"{given}: {parent} cannot be written to; name another")


def _original(target: Path) -> str | None:
    """Returns the run directory of which the target is a copy."""
    file = target / ORIGINAL
    return file.read_text() if file.is_file() else None


def copy_run(run_dir: Path, target: Path) -> None:
    """Copies the run. Logs a warning if that fails, for example because the disk is full."""
    try:
        files = _files_of(run_dir)
        if not target.exists():
            target.mkdir(parents=True)
            (target / ORIGINAL).write_text(str(run_dir))
        for file in sorted(files, key=lambda file: file.name == POSITION):
            with contextlib.suppress(FileNotFoundError):  # the run has just removed it
                _copy(run_dir / file, target / file)
        _remove_all_but({*files, Path(ORIGINAL)}, target)
    except OSError as error:
        log.warning("%s is not a copy of the newest checkpoint: %s", target, error)


def _remove_all_but(files: set[Path], target: Path) -> None:
    for path in sorted(target.rglob("*"), reverse=True):  # a folder after its files
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path.relative_to(target) not in files:
            path.unlink()


def _files_of(run_dir: Path) -> set[Path]:
    """Returns the paths of a run's files, in the run directory; those of complete checkpoints alone."""
    whole = {f"{position.version:08d}" for position in Checkpoints(run_dir).complete_checkpoints()}
    files = (path.relative_to(run_dir) for path in run_dir.rglob("*") if path.is_file())
    wanted = {file for file in files if not {*file.parts}.intersection(OF_A_LIVE_RUN)}
    return {file for file in wanted if not _is_incomplete(file, whole)}


def _is_incomplete(file: Path, whole: set[str]) -> bool:
    return file.parts[0] == "checkpoints" and file.parts[1].isdigit() and file.parts[1] not in whole


def _copy(source: Path, target: Path) -> None:
    """Copies a file that has changed, so that the target is the old or the new one."""
    if target.exists() and _stamp(target) == _stamp(source):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + UNFINISHED)
    shutil.copy2(source, unfinished)
    unfinished.replace(target)


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns
