"""The runs that the viewer shows: a single run, or all runs in a directory."""

import threading
from pathlib import Path

from extensions.viewer.json_text import well_formed
from extensions.viewer.runs.opened import OpenRun
from pipelinerl.streams.run_directory import InvalidInputError, check_run

MOST_OPEN = 8  # most runs open at a time


class NoSuchRunError(LookupError):
    """No run has this name."""


class Runs:
    """The runs at a path: a run directory, or a directory of runs. Raises InvalidInputError if neither."""

    def __init__(self, path: Path):
        path = path.resolve()
        self.is_single = is_run(path)
        self.is_closing = False  # True once the server ends; event streams then end too
        self._path = path
        self._open: dict[str, OpenRun] = {}
        self._lock = threading.Lock()
        if not self.is_single and not self.directories():
            check_run(path)  # raises
            raise InvalidInputError(f"{path} is neither the directory of a run nor one of runs")

    def directories(self) -> dict[str, Path]:
        """Returns the run directories by name. Skips symbolic links, which would list a run twice."""
        if self.is_single:
            return {well_formed(self._path.name): self._path}
        try:
            entries = sorted(self._path.iterdir())
        except OSError:
            return {}
        found = (entry for entry in entries if not entry.is_symlink() and is_run(entry))
        return {well_formed(entry.name): entry for entry in found}

    def get(self, name: str) -> OpenRun:
        """Opens the run of this name and marks it as watched. Raises NoSuchRunError."""
        with self._lock:
            if name in self._open and not self._open[name].still_exists:
                self._open.pop(name).close()
            if name not in self._open:
                self._open_run(name)
            run = self._open[name] = self._open.pop(
                name
            )  # moves the run to the end: least recently used first
        run.following.mark_watched()
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
    """Returns True if the directory is a run directory."""
    return (path / "streams").is_dir() or (path / "config.yaml").is_file()
