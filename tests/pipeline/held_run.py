"""A run that waits in its middle, so that something happens to an observer of it meanwhile."""

import os
import signal
from pathlib import Path

from benchmarks.run_processes import jobs_of
from tests.pipeline.runs import finish, start, wait_for


class HeldRun:
    """A run whose trainer waits in its first publication until it is let go.

    observer: the name of its observer. overrides: what starts that one.
    """

    def __init__(self, folder: Path, observer: str, *overrides: str):
        self.directory = folder / "run"
        self._observer = observer
        self._held = folder / "held"
        (folder / "hold").touch()
        self._launcher = start(
            self.directory,
            *overrides,
            "max_steps=3",
            "trainer._target_=tests.held_trainer.HeldTrainer",
            f"+trainer.hold={folder / 'hold'}",
            f"+trainer.held={self._held}",
        )
        wait_for(self._held.exists)

    def observer_pid(self) -> int | None:
        return jobs_of(self.directory).get(self._observer)

    def kill_observer(self) -> int:
        """Kills the process once it lives; returns its identifier."""
        pid = wait_for(self.observer_pid)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self.observer_pid() != pid)
        return pid

    def finish(self) -> str:
        """Returns what a run that must end well has said on stderr."""
        self._held.unlink()
        status, err = finish(self._launcher)
        assert status == 0, err
        return err
