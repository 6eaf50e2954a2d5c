"""The progress of a tracker: `RUN_DIR/trackers/<name>.json`, used by one process at a time."""

import fcntl
import os
import secrets
from pathlib import Path

import msgspec

from contracts.support.files import write_atomically
from pipelinerl.errors import PlanError


class Progress(msgspec.Struct):
    """The state from which a new process continues."""

    run_id: str  # the run's id in the tracker
    offsets: dict[str, int] = {}  # number of bytes of each metrics file that the tracker has, by process
    mark: int | str | None = None  # adapter-specific state of the tracker at these offsets
    is_closed: bool = False  # the tracker was closed properly since it was opened


class ProgressFile:
    """The progress file, locked until this process ends.

    Raises PlanError if another process has locked it.
    """

    def __init__(self, run_dir: Path, name: str):
        directory = run_dir / "trackers"
        directory.mkdir(exist_ok=True)
        self._path = directory / f"{name}.json"
        self._lock = (directory / f".{name}.lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            pid = self._lock.read().strip()
            raise PlanError(f"process {pid} writes this run to {name} already; end it first") from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()

    def read(self) -> Progress:
        """Returns the last written progress, or that of a new, empty run if there is none."""
        if not self._path.exists():
            return Progress(run_id=secrets.token_hex(8))
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Progress)
        except msgspec.MsgspecError as error:
            raise PlanError(f"{self._path} is not as it was written: {error}") from None

    def write(self, progress: Progress) -> None:
        write_atomically(self._path, msgspec.json.encode(progress))
