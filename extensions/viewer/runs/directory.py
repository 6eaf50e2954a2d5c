"""The runs that the viewer shows, by name: one run, or those in a directory."""

import threading
from pathlib import Path

from extensions.viewer.json_text import well_formed
from extensions.viewer.runs.opened import OpenRun
from pipelinerl.streams.run_directory import InvalidInputError, check_run

MOST_OPEN = 8  # number of runs followed at a time


class NoSuchRunError(LookupError):
    """No run has this name."""


class Runs:
    """The runs at a path. Raises InvalidInputError if it has none, and cannot get one."""

    def __init__(self, path: Path):
        path = path.resolve()
        self.is_single = is_run(path)
        self.is_closing = False  # then no run is followed any longer
        self._path = path
        self._open: dict[str, OpenRun] = {}
        self._lock = threading.Lock()
        if not self.is_single and not self.directories():
            check_run(path)  # raises
            raise InvalidInputError(f"{path} is neither the directory of a run nor one of runs")

    def directories(self) -> dict[str, Path]:
        """Returns the directories of the runs, by name, without links, which would list a run twice."""
        if self.is_single:
            return {well_formed(self._path.name): self._path}
        try:
            entries = sorted(self._path.iterdir())
        except OSError:
            return {}
        found = (entry for entry in entries if not entry.is_symlink() and is_run(entry))
        return {well_formed(entry.name): entry for entry in found}

    def get(self, name: str) -> OpenRun:
        """Returns the run of this name, and follows it from now on. Raises NoSuchRunError."""
        with self._lock:
            if name in self._open and not self._open[name].is_there:
                self._open.pop(name).close()
            if name not in self._open:
                self._open_run(name)
            run = self._open[name] = self._open.pop(name)  # to the end, as the most recently used
        run.following.asked()
        return run

    def close(self) -> None:
        with self._lock:
            for run in self._open.values():
                run.close()
            self._open.clear()

    def _open_run(self, name: str) -> None:
        directory = self.directories().get(name)
        if directory is None:
            raise NoSuchRunError(f"there is no run {name} here")
        while len(self._open) >= MOST_OPEN:
            self._open.pop(next(iter(self._open))).close()
        self._open[name] = OpenRun(name, directory)


def is_run(path: Path) -> bool:
    """Returns whether the directory has a run."""
    return (path / "streams").is_dir() or (path / "config.yaml").is_file()
