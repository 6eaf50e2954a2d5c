"""The processes of a run's observers, which watch it from outside.

They run on the launcher's machine, whose files they read, and have none of the run's secrets. The end of one
is a warning at most: it neither ends the run nor keeps it open.
"""

import contextlib
import math
import shlex
import time
from collections.abc import Iterable
from pathlib import Path

from contracts.support.files import write_atomically
from contracts.support.messages import one_line
from pipelinerl.launcher.executors.base import Ended, Process, Want
from pipelinerl.launcher.executors.local import LocalExecutor
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.supervising.ends import Restarts, in_words, is_alive
from pipelinerl.launcher.supervising.job_starter import JobLogs
from pipelinerl.observers import Observer, end_path
from pipelinerl.paths import importable

MOST = 3  # restarts of one of them in a launch
FINISH_S = 60.0  # for all of them, once the run has ended
HURRIED_S = 5.0  # once it was interrupted
POLL_S = 0.05


class ObserverJobs:
    """Starts the observers, starts each again a few times, and lets them finish at the end of the run."""

    def __init__(self, observers: Iterable[Observer], run_dir: Path):
        self._observers = {observer.name: observer for observer in observers}
        self._commands = {name: each.command(run_dir) for name, each in self._observers.items()}
        self._end = end_path(run_dir)
        self._executor = LocalExecutor()
        self._executor.ask(Want(name, name, name) for name in self._observers)
        self._logs = JobLogs(run_dir / "logs")
        self._restarts = {
            name: Restarts(MOST, math.inf, shortest_s=0.5, longest_s=30) for name in self._observers
        }
        files = (observer.announces(run_dir) for observer in self._observers.values())
        self._urls = {file: "" for file in files if file}
        self._is_finishing = False
        self._finish_s = FINISH_S

    def start(self) -> None:
        """Starts them all."""
        for file in (self._end, *self._urls):  # of an earlier launch of the run
            with contextlib.suppress(OSError):  # not there, or a place that observers cannot write to either
                file.unlink()
        for name in self._observers:
            self._start(name)

    def tend(self, now: float) -> bool:
        """Starts again those that have ended; warns of those that have done so too often. Says new URLs.

        Returns whether any of them is alive or will be.
        """
        if not self._is_finishing:
            self._announce()
        for name, fate in self._executor.look().items():
            if isinstance(fate, Ended) and not self._has_finished(name, fate):
                self._take_note(name, fate, now)
        fates = self._executor.look().items()
        return any(is_alive(fate) or self._restarts[name].is_pending for name, fate in fates)

    def _has_finished(self, name: str, fate: Ended) -> bool:
        return self._is_finishing and fate.status == 0 and not self._restarts[name].is_pending

    def hurry(self) -> None:
        """Has `finish` wait for less long: who interrupts a run may end the launcher soon."""
        self._finish_s = HURRIED_S

    def finish(self) -> None:
        """Tells them that the run has ended, and waits for them to end, but not for ever."""
        if not self._observers:
            return
        self._is_finishing = True
        try:
            self._end.parent.mkdir(exist_ok=True)
            write_atomically(self._end, "")
        except OSError as error:
            say(f"warning: the observers are not told that the run has ended: {one_line(error)}")
        deadline = time.monotonic() + self._finish_s
        while self.tend(time.monotonic()):
            if time.monotonic() > deadline:
                self._warn_of_unfinished()
                return
            time.sleep(POLL_S)

    def close(self) -> None:
        """Kills what is left of them."""
        self._executor.close()

    def _start(self, name: str) -> None:
        environment = {"PYTHONPATH": importable(), "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
        observer = self._observers[name]
        command = (*self._commands[name], *observer.with_run)
        process = Process(command, environment, self._logs.begin(name))
        try:
            self._executor.start(name, process)
        except OSError as error:
            self._restarts[name].give_up()
            self._warn(name, f"{name} cannot be started: {one_line(error)}")

    def _announce(self) -> None:
        for file, said in self._urls.items():
            with contextlib.suppress(OSError):  # not there yet
                url = file.read_text().strip()
                if url not in ("", said):
                    self._urls[file] = url
                    say(f"view the run at {url}")

    def _take_note(self, name: str, fate: Ended, now: float) -> None:
        restarts = self._restarts[name]
        if restarts.is_spent:
            return
        if not restarts.is_pending:
            restarts.ended(now, fate.status)
        if restarts.is_spent:
            self._warn(name, f"{name} {in_words(fate.status)}; {self._logs.see(name, fate.status)}")
        elif restarts.is_due(now):
            self._start(name)

    def _warn_of_unfinished(self) -> None:
        for name, fate in self._executor.look().items():
            if is_alive(fate) or self._restarts[name].is_pending:
                self._warn(name, f"{name} has not finished within {self._finish_s:g} s of the run's end")

    def _warn(self, name: str, why: str) -> None:
        observer = self._observers[name]
        command = shlex.join(("python", *self._commands[name][1:]))
        say(f"warning: {why}; the run does not need it, and this command {observer.repeated}: {command}")
