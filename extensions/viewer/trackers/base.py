"""The interface of a tracker's adapter."""

from pathlib import Path
from typing import Protocol

from extensions.viewer.lines import Line
from extensions.viewer.progress import Progress

PROJECT = "pipelinerl"  # default project of runs


class Tracker(Protocol):
    """One run in one tracker. `write` is not called between `close` and `open`."""

    how_to_see: str  # how to view the run, for the user; valid after `close`

    def __init__(self, run_dir: Path, config: dict): ...

    def is_there(self, progress: Progress) -> bool:
        """Returns whether the tracker still has the data of this progress; a user may have deleted it."""

    def open(self, progress: Progress) -> None:
        """Resumes the run `progress.run_id`, or begins it.

        Sets `progress.offsets` and `progress.mark` to the data that the run then has.
        """

    def write(self, lines: list[Line]) -> int | str | None:
        """Writes lines and returns the mark that is saved with their offsets."""

    def close(self) -> None:
        """Waits until all written lines are stored durably."""
