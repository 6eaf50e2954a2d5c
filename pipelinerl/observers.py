"""The interface of observers: what watches a run from outside, such as a viewer or a tracker of metrics.

An observer is a command, which a user can repeat when the run has ended. The launcher starts it with the run,
on its own machine, without the run's secrets (`launcher/supervising/observer_jobs.py`). Must not know any
observer.
"""

import abc
import sys
from pathlib import Path

PYTHON = (sys.executable, "-m")


def end_path(run_dir: Path) -> Path:
    """Returns the file with which a launcher tells its observers that nothing more will be written."""
    return run_dir / "trackers" / "ended"


class Observer(abc.ABC):
    """A constructor raises ValueError for wrong options."""

    name = "observer"  # of its process, in messages and of its log: RUN_DIR/logs/NAME.log
    repeated = "writes the rest"  # what the command does for a user who repeats it
    with_run: tuple[str, ...] = ()  # arguments that the command has only while the run is under way

    @abc.abstractmethod
    def command(self, run_dir: Path) -> tuple[str, ...]:
        """Returns the command, as strings, that observes the run of this directory."""

    def announces(self, run_dir: Path) -> Path | None:
        """Returns the file to which it writes the URL where it shows the run; None if it shows none."""
        return None

    def missing(self) -> str | None:
        """Returns how to install what it needs and this machine lacks; None if there is nothing."""
        return None
