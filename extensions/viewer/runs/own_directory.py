"""The directory for the viewer's own files about a run."""

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path

from extensions.viewer.index.schema import delete
from pipelinerl.paths import OWNER_ALONE


class OwnDirectory:
    """`RUN_DIR/view`, or a temporary directory if another viewer uses that one, or it is read-only."""

    def __init__(self, run_dir: Path):
        self._lock = None
        self.path = run_dir / "view"
        try:
            if self.path.is_symlink():  # it may lead out of the run
                raise FileExistsError(self.path)
            self.path.mkdir(OWNER_ALONE, exist_ok=True)
            self._lock = (self.path / "lock").open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._unlock()
            self.path = Path(tempfile.mkdtemp(prefix="pipelinerl-view-"))

    @property
    def index(self) -> Path:
        return self.path / "index.sqlite"

    @property
    def copy(self) -> Path:
        """The directory of the copied streams."""
        return self.path / "streams"

    @property
    def positions(self) -> Path:
        """The file with the positions up to which the streams are copied."""
        return self.path / "streams.json"

    def forget_copy(self) -> None:
        """Deletes the copy, and the index, which has the copy's offsets."""
        shutil.rmtree(self.copy, ignore_errors=True)
        delete(self.index)

    def close(self) -> None:
        if self._lock is None:
            shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.close()
        self._lock = None
