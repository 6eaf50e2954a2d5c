"""The interface of a tracker's adapter."""

from pathlib import Path
from typing import Protocol

from extensions.viewer.lines import Line
from extensions.viewer.progress import Progress

PROJECT = "pipelinerl"  # default project of runs


class Tracker(Protocol):
    """One run in one tracker. `write` is only called between `open` and `close`."""

    how_to_see: str  # command or URL for viewing the run, valid after `close`

    def __init__(self, run_dir: Path, config: dict): ...

    def has_data(self, progress: Progress) -> bool:
        """Returns False if the data of this progress were deleted. All lines are then written again."""

    def open(self, progress: Progress) -> None:
        """Begins or resumes the run `progress.run_id`.

        Sets `progress.offsets` and `progress.mark` to the state of the data that the tracker has.
        """

    def write(self, lines: list[Line]) -> int | str | None:
        """Writes lines and returns the mark to save with their offsets."""

    def close(self) -> None:
        """Waits until all written lines are stored durably."""
