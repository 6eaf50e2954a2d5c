"""The observers of this extension: the viewer's pages, and trackers of metrics.

Built by the launcher. Must not import a tracker's library.
"""

from pathlib import Path

from extensions.viewer.run_end import url_path
from extensions.viewer.trackers import missing_library, unknown_tracker
from pipelinerl.observers import PYTHON, Observer


class Viewer(Observer):
    """Pages that show the run in a browser."""

    name = "viewer"
    repeated = "shows the run"
    with_run = ("--end-with-run",)

    def command(self, run_dir: Path) -> tuple[str, ...]:
        return (*PYTHON, "extensions.viewer", str(run_dir))

    def announces(self, run_dir: Path) -> Path:
        return url_path(run_dir)


class Tracking(Observer):
    """The metrics in one tracker. Each tracker has a separate process, so that they do not fail together."""

    def __init__(self, tracker: str):
        if why_not := unknown_tracker(tracker):
            raise ValueError(why_not)
        self.name = f"tracker-{tracker}"
        self._tracker = tracker

    def command(self, run_dir: Path) -> tuple[str, ...]:
        return (*PYTHON, "extensions.viewer.track", str(run_dir), "--to", self._tracker)

    def missing(self) -> str | None:
        return missing_library(self._tracker)
