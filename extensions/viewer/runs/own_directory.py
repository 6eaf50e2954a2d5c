"""The viewer's own directory for each run, with the index and the copied streams."""

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path

from extensions.viewer.index.schema import delete
from pipelinerl.paths import OWNER_ALONE


class OwnDirectory:
    """`RUN_DIR/view`, locked until `close`. A temporary directory if that is locked or not writable."""

    def __init__(self, run_dir: Path):
        self._lock = None
        self.path = run_dir / "view"
        try:
            if self.path.is_symlink():  # may lead out of the run
                raise FileExistsError(self.path)
            self.path.mkdir(OWNER_ALONE, exist_ok=True)
            self._lock = (self.path / "lock").open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._release()
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

    def delete_copy(self) -> None:
        """Deletes the copied streams, and the index, which refers to offsets in them."""
        shutil.rmtree(self.copy, ignore_errors=True)
        delete(self.index)

    def close(self) -> None:
        if self._lock is None:
            shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.close()
        self._lock = None
