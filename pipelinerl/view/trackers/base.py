"""What a tracker's adapter does."""

from pathlib import Path
from typing import Protocol

from pipelinerl.view.lines import Line
from pipelinerl.view.progress import Progress

PROJECT = "pipelinerl"  # that runs are under, where the user names none


class Tracker(Protocol):
    """One run in one tracker. Nothing is written between `close` and `open`."""

    how_to_see: str  # for people, once it is closed

    def __init__(self, run_dir: Path, config: dict): ...

    def is_there(self, progress: Progress) -> bool:
        """Returns whether the tracker still has a place for what was written; a user may have deleted it."""

    def open(self, progress: Progress) -> None:
        """Goes on with the run `progress.run_id`, or begins it.

        Sets `progress.offsets` and `progress.mark` to what the run then holds.
        """

    def write(self, lines: list[Line]) -> int | str | None:
        """Writes lines and returns the mark that is saved with their offsets."""

    def close(self) -> None:
        """Returns when all that was written is kept."""
