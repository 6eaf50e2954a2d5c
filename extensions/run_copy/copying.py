"""Copies a run, which may write meanwhile, so that it can be resumed from its newest checkpoint.

A resume reads the newest complete checkpoint and the streams. A stream is copied before the streams that its
records refer to, so these are never shorter than what refers to them. What completes a checkpoint comes last.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from contracts.support.files import replaced_atomically, write_atomically
from extensions.run_copy.places import LOCK, MARKS, mark, why_not
from pipelinerl.paths import OWNER_ALONE
from pipelinerl.streams.events import resumptions
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.training.checkpoints import Checkpoints, Position

TRIES = 3
STAMPS = "copied.json"  # in a copy: size and time of change of each original when it was copied
LEFT_OUT = {*MARKS, STAMPS, "checkpoints", "heartbeats", "pulled", "streams", "trackers", "view", "weights"}
REFERRED_TO = ("rows", "eval_rollouts", "rollouts", "sampler_states", "actor_events")  # in this order, last
LAUNCHER = "launcher_events"
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
    the run changes faster than it is copied. Raises OSError if a disk fails.
    """
    why = ""
    for _ in range(TRIES):
        if reason := why_not(run_dir, copy):
            raise CopyError(reason)
        mark(run_dir, copy)
        with locked(copy):
            one = Copying(run_dir, copy)
            try:
                why = one.tried()
            except FileNotFoundError as error:
                why = f"{error.filename} was removed meanwhile"
            finally:
                one.write_stamps()
        if not why:
            return one.newest
    raise CopyError(f"{why}, {TRIES} times in a row; raise checkpoint.every or checkpoint.keep")


@contextmanager
def locked(copy: Path) -> Iterator[None]:
    """Keeps launchers and other copies out of the copy. Raises CopyError if one is there."""
    lock = copy / LOCK
    lock.parent.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CopyError(f"{copy} is in use by a run, or by another copy") from None
        yield


def resumptions_of(run_dir: Path) -> int:
    """Returns how often the run was resumed."""
    with recorded_streams(run_dir) as streams:
        return sum(1 for _ in resumptions(streams))


class Copied(msgspec.Struct):
    """What a copy has. stamps: by path. resumptions: of the run, at the last complete copy."""

    stamps: dict[str, tuple[int, int]] = {}
    resumptions: int = 0


class Copying:
    """One try to copy a run. newest: the checkpoint that is copied."""

    def __init__(self, run_dir: Path, copy: Path):
        self._run_dir = run_dir
        self._copy = copy
        self._copied = _read_copied(copy)
        self._stamps = self._copied.stamps
        self._files: set[Path] = {LOCK}  # of the copy
        newest = newest_checkpoint(run_dir)
        if newest is None:
            raise CopyError(f"{run_dir} has no complete checkpoint yet")
        self.newest = newest

    def tried(self) -> str:
        """Copies, and completes the copy. Returns why it could not be completed; "" if it is complete."""
        completes = Path("checkpoints", f"{self.newest.version:08d}", COMPLETES)
        before = _stamp(self._run_dir / completes)
        resumed = resumptions_of(self._run_dir)
        self._remove_undone(resumed)
        self._add(self._other_files())
        self._add(file for file in self._inside(completes.parent) if file != completes)
        for name in (LAUNCHER, *self._streams()):
            self._add(self._segments(name))
        if resumptions_of(self._run_dir) != resumed:
            return "the run was resumed while it was copied"
        if _stamp(self._run_dir / completes) != before:
            return "the checkpoint was replaced while it was copied"
        self._add([completes])
        self._remove_others()
        self._copied.resumptions = resumed
        return ""

    def write_stamps(self) -> None:
        """Writes what is copied, also of a try that failed, so that the next one copies the rest."""
        write_atomically(self._copy / STAMPS, msgspec.json.encode(self._copied))

    def _remove_undone(self, resumed: int) -> None:
        """Takes the completeness from checkpoints of the copy that do not go with the run's streams.

        These are trained anew or newer; and all that the run no longer has, if it has been resumed since.
        """
        for file in self._copy.glob(f"checkpoints/*/{COMPLETES}"):
            inside = file.relative_to(self._copy)
            if (self._run_dir / inside).exists():
                is_undone = self._stamps.get(str(inside)) != _stamp(self._run_dir / inside)
            else:
                is_newer = int(file.parent.name) > self.newest.version
                is_undone = is_newer or self._copied.resumptions != resumed
            if is_undone:
                file.unlink()

    def _other_files(self) -> Iterator[Path]:
        for path in sorted(self._run_dir.iterdir()):
            if path.name not in LEFT_OUT:
                yield from self._inside(Path(path.name))
        for name in ("final", "reference"):
            yield from self._inside(Path("checkpoints", name))

    def _inside(self, inside: Path) -> list[Path]:
        """Returns the paths, in the run directory, of a file or of all files in a directory."""
        path = self._run_dir / inside
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        return [
            file.relative_to(self._run_dir) for file in found if file.is_file() and file.suffix != ".part"
        ]

    def _streams(self) -> list[str]:
        """Returns the names of the streams but the launcher's, those that others refer to last."""
        names = {path.name for path in (self._run_dir / "streams").iterdir()} - {LAUNCHER}
        return sorted(names - {*REFERRED_TO}) + [name for name in REFERRED_TO if name in names]

    def _segments(self, stream: str) -> list[Path]:
        """Returns the segments that a stream has now, oldest first."""
        found = sorted((self._run_dir / "streams" / stream).glob(SEGMENTS))
        return [file.relative_to(self._run_dir) for file in found]

    def _add(self, files: Iterator[Path] | list[Path]) -> None:
        """Copies those files that have changed. One that grows meanwhile is copied again the next time."""
        for file in files:
            stamp = _stamp(self._run_dir / file)
            if self._stamps.get(str(file)) != stamp or not (self._copy / file).exists():
                _copy(self._run_dir / file, self._copy / file)
                self._stamps[str(file)] = stamp
            self._files.add(file)

    def _remove_others(self) -> None:
        """Removes the checkpoints and segments that the run has removed, each first what completes it."""
        for file in self._copy.glob(f"checkpoints/*/{COMPLETES}"):
            if file.relative_to(self._copy) not in self._files:
                file.unlink()
        for directory in (self._copy / "checkpoints", self._copy / "streams"):
            for path in sorted(directory.rglob("*"), reverse=True):  # a directory after its files
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
                elif path.is_file() and path.relative_to(self._copy) not in self._files:
                    path.unlink()
        for name in self._stamps.keys() - {str(file) for file in self._files}:
            del self._stamps[name]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
    with replaced_atomically(target) as unfinished:
        shutil.copyfile(source, unfinished)
        shutil.copymode(source, unfinished)


def _stamp(file: Path) -> tuple[int, int]:
    """Returns size and time of change, in nanoseconds."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def _read_copied(copy: Path) -> Copied:
    """Returns what the last try has copied; nothing if there is none, or the file is damaged."""
    try:
        return msgspec.json.decode((copy / STAMPS).read_bytes(), type=Copied)
    except (FileNotFoundError, msgspec.MsgspecError):
        return Copied()
