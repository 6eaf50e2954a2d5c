"""The interface of observers, which show or copy a run's records, such as a viewer or a metrics tracker.

An observer is a command. The launcher starts it with the run, on its own machine, without the run's secrets
(`launcher/supervising/observer_jobs.py`). A user can repeat it after the run. Must not know any observer.
"""

import abc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYTHON = (sys.executable, "-m")


def end_path(run_dir: Path) -> Path:
    """Returns the file that the launcher writes when the run has ended and nothing more will be written."""
    return run_dir / "trackers" / "ended"


class Observer(abc.ABC):
    """A constructor raises ValueError for wrong options."""

    name = "observer"  # in messages, and of its log RUN_DIR/logs/NAME.log
    repeated = "writes the rest"  # a phrase for messages: what the command does after the run
    with_run: tuple[str, ...] = ()  # arguments of the command only during the run

    @abc.abstractmethod
    def command(self, run_dir: Path) -> tuple[str, ...]:
        """Returns the command that observes the run in this directory."""

    def announces(self, run_dir: Path) -> Path | None:
        """Returns the file to which the command writes its URL; None if it has none."""
        return None

    def refusal(self, config: Mapping[str, Any], run_dir: Path, is_resumed: bool) -> str | None:
        """Returns why this run cannot be observed, in one line; None if it can. config: as in config.yaml."""
        return None

    def missing(self) -> str | None:
        """Returns how to install a package that is needed and not installed; None if none is."""
        return None
