"""Writes the metrics of a run to one tracker, each line exactly once, even if the process is killed."""

from pathlib import Path

from extensions.viewer.lines import MetricsLines
from extensions.viewer.progress import Progress, ProgressFile
from extensions.viewer.trackers import make_tracker
from pipelinerl.config import saved_config
from pipelinerl.report.secrets import without_secrets


class Follower:
    """A follower of a run for one tracker.

    Raises PlanError if another process writes this run to the tracker. The progress is saved after each batch
    of lines, so it may lack the last batch of a killed process. When the tracker is opened, its adapter
    ensures that such a batch counts once.

    `name`: the tracker's name.
    """

    def __init__(self, run_dir: Path, name: str):
        self._file = ProgressFile(run_dir, name)
        self._progress = self._file.read()
        config = without_secrets(saved_config(run_dir))
        self._tracker = make_tracker(name, run_dir, config)
        self._lines = MetricsLines(run_dir)
        if not self._tracker.is_there(self._progress):
            self._progress = Progress(self._progress.run_id)  # writes everything again
        self._lines.seek(self._progress.offsets)
        self._is_open = False

    def advance(self) -> None:
        """Writes the new lines. Opens the tracker only if there are any."""
        lines = self._lines.read()
        if not self._is_open and (lines or not self._progress.is_closed):
            self._open()
            lines = self._lines.read()
        while lines:
            self._progress.mark = self._tracker.write(lines)
            self._save()
            lines = self._lines.read()

    def close(self) -> str:
        """Closes the tracker, which then has every line. Returns how to view them."""
        if self._is_open:
            self._tracker.close()
            self._is_open = False
            self._progress.is_closed = True
            self._save()
        return self._tracker.how_to_see

    def _open(self) -> None:
        self._progress.is_closed = False
        self._file.write(self._progress)  # before the tracker changes
        self._tracker.open(self._progress)
        self._lines.seek(self._progress.offsets)
        self._is_open = True

    def _save(self) -> None:
        self._progress.offsets = self._lines.offsets
        self._file.write(self._progress)
