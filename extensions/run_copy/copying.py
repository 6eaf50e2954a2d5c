"""Copies a run, which may write meanwhile, so that it can be resumed from its newest checkpoint.

A resume reads the newest complete checkpoint and the streams. A stream is copied before the streams that its
records refer to, so these are never shorter than what refers to them. What completes a checkpoint comes last.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from contracts.support.files import replaced_atomically, write_atomically
from extensions.run_copy.places import OF_A_RUN, ORIGINAL, why_not
from pipelinerl.paths import OWNER_ALONE
from pipelinerl.training.checkpoints import Checkpoints, Position

TRIES = 3
LEFT_OUT = {OF_A_RUN, ORIGINAL, "checkpoints", "pulled", "streams", "trackers", "view", "weights"}
REFERRED_TO = ("rows", "eval_rollouts", "rollouts", "sampler_states", "actor_events")  # in this order, last
LAUNCHER = "launcher_events"  # of which a change, such as a resume, makes another try necessary
SEGMENTS = "*.records"
COMPLETES = "position.json"


class CopyError(Exception):
    """The run cannot be copied. The message is printed as it is."""


def newest_checkpoint(run_dir: Path) -> Position | None:
    """Returns the position of the newest complete checkpoint; None if there is none."""
    return max(Checkpoints(run_dir).complete_checkpoints(), default=None)


def copy_run(run_dir: Path, copy: Path) -> Position:
    """Copies what has changed, and returns the copied checkpoint.

    Raises CopyError if there is no checkpoint, or the directory is not the copy of this run. It also does if
    checkpoints are removed before they are copied. Raises OSError if a disk fails.
    """
    for _ in range(TRIES):
        if reason := why_not(run_dir, copy):
            raise CopyError(reason)
        newest = newest_checkpoint(run_dir)
        if newest is None:
            raise CopyError(f"{run_dir} has no complete checkpoint yet")
        try:
            if _copied(run_dir, copy, newest):
                return newest
        except FileNotFoundError:
            continue  # removed with its checkpoint, so this one is not the newest any more
    raise CopyError(
        "checkpoints are removed before they are copied; raise checkpoint.every or checkpoint.keep"
    )


def _copied(run_dir: Path, copy: Path, newest: Position) -> bool:
    """Copies the run with this checkpoint. Returns False if the run has removed it or resumed meanwhile."""
    _prepare(run_dir, copy, newest)
    completes = Path("checkpoints", f"{newest.version:08d}", COMPLETES)
    before = _stamp(run_dir / completes)
    checkpoint = {file for file in _files(run_dir, completes.parent) if file != completes}
    others = {file for name in ("final", "reference") for file in _files(run_dir, Path("checkpoints", name))}
    _copy_all(run_dir, copy, [*_other_files(run_dir), *sorted(others | checkpoint)])
    launcher = _copy_stream(run_dir, copy, LAUNCHER)
    streams = {file for name in _streams(run_dir) for file in _copy_stream(run_dir, copy, name)}
    if any(_stamp(run_dir / file) != _stamp(copy / file) for file in launcher):
        return False
    if _stamp(run_dir / completes) != before:
        return False
    _copy_all(run_dir, copy, [completes])
    _remove_all_but({completes, *checkpoint, *others, *streams, *launcher}, copy)
    return True


def _prepare(run_dir: Path, copy: Path, newest: Position) -> None:
    """Makes the copy's directory. Steps that were trained anew have no complete checkpoint any more."""
    if not copy.exists():
        copy.mkdir(mode=OWNER_ALONE, parents=True)
        write_atomically(copy / ORIGINAL, str(run_dir))
    for file in copy.glob(f"checkpoints/*/{COMPLETES}"):
        original = run_dir / file.relative_to(copy)
        is_old = int(file.parent.name) <= newest.version
        is_same = original.exists() and _stamp(original) == _stamp(file)
        if not (is_same or is_old and not original.exists()):
            file.unlink()


def _other_files(run_dir: Path) -> Iterator[Path]:
    for path in sorted(run_dir.iterdir()):
        if path.name not in LEFT_OUT:
            yield from _files(run_dir, Path(path.name))


def _files(run_dir: Path, inside: Path) -> list[Path]:
    """Returns the paths, in the run directory, of a file or of all files in a directory."""
    path = run_dir / inside
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    return [file.relative_to(run_dir) for file in found if file.is_file() and file.suffix != ".part"]


def _streams(run_dir: Path) -> list[str]:
    """Returns the names of the streams but the launcher's, those that others refer to last."""
    names = sorted(path.name for path in (run_dir / "streams").iterdir())
    return sorted(set(names) - {LAUNCHER}, key=lambda name: (name in REFERRED_TO, _rank(name), name))


def _rank(name: str) -> int:
    return REFERRED_TO.index(name) if name in REFERRED_TO else 0


def _copy_stream(run_dir: Path, copy: Path, name: str) -> list[Path]:
    """Copies the segments that a stream has now, oldest first."""
    found = sorted((run_dir / "streams" / name).glob(SEGMENTS))
    files = [file.relative_to(run_dir) for file in found]
    _copy_all(run_dir, copy, files)
    return files


def _copy_all(run_dir: Path, copy: Path, files: list[Path]) -> None:
    for file in files:
        before = _stamp(run_dir / file)
        if not (copy / file).exists() or _stamp(copy / file) != before:
            _copy(run_dir / file, copy / file, before)


def _copy(source: Path, target: Path, stamp: tuple[int, int]) -> None:
    """Copies a file, which may grow meanwhile: its time of change is then older than the source's."""
    target.parent.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
    with replaced_atomically(target) as unfinished:
        shutil.copyfile(source, unfinished)
        shutil.copymode(source, unfinished)
        os.utime(unfinished, ns=(stamp[1], stamp[1]))


def _stamp(file: Path) -> tuple[int, int]:
    """Returns size and time of change, in nanoseconds."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _remove_all_but(files: set[Path], copy: Path) -> None:
    """Removes the checkpoints and segments that the run has removed."""
    for directory in (copy / "checkpoints", copy / "streams"):
        for path in sorted(directory.rglob("*"), reverse=True):  # a directory after its files
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.is_file() and path.relative_to(copy) not in files:
                path.unlink()
