"""The processes of a run's observers. They run on the launcher's machine, without the run's secrets.

An observer that fails causes at most a warning: it does not end the run.
"""

import contextlib
import math
import shlex
import time
from collections.abc import Iterable
from pathlib import Path

from contracts.support.files import write_atomically
from contracts.support.messages import one_line
from pipelinerl.launcher.executors.base import Ended, Process, ResourceRequest
from pipelinerl.launcher.executors.local import LocalExecutor
from pipelinerl.launcher.supervising.failures import Restarts, in_words, is_alive
from pipelinerl.launcher.supervising.job_starter import JobLogs
from pipelinerl.launcher.terminal import print_message
from pipelinerl.observers import Observer, end_path
from pipelinerl.paths import importable

MAX_RESTARTS = 3  # of each observer in a launch
FINISH_S = 60.0  # time for all observers to end after the run
HURRIED_S = 5.0  # the same after an interruption
POLL_S = 0.05


class ObserverJobs:
    """Starts and restarts the observers, and lets them finish at the end of the run."""

    def __init__(self, observers: Iterable[Observer], run_dir: Path):
        self._observers = {observer.name: observer for observer in observers}
        self._commands = {name: each.command(run_dir) for name, each in self._observers.items()}
        self._end = end_path(run_dir)
        self._executor = LocalExecutor()
        self._executor.request(ResourceRequest(name, name, name) for name in self._observers)
        self._logs = JobLogs(run_dir / "logs")
        self._restarts = {
            name: Restarts(MAX_RESTARTS, math.inf, shortest_s=0.5, longest_s=30) for name in self._observers
        }
        files = (observer.announces(run_dir) for observer in self._observers.values())
        self._urls = {file: "" for file in files if file}
        self._is_finishing = False
        self._finish_s = FINISH_S

    def start(self) -> None:
        for file in (self._end, *self._urls):  # files of an earlier launch
            with contextlib.suppress(OSError):  # no such file, or a directory that observers cannot write to
                file.unlink()
        for name in self._observers:
            self._start(name)

    def update(self, now: float) -> bool:
        """Restarts observers and prints new URLs. Returns True if any is alive or will be restarted."""
        if not self._is_finishing:
            self._print_urls()
        for name, state in self._executor.poll().items():
            if isinstance(state, Ended) and not self._has_finished(name, state):
                self._handle_end(name, state, now)
        states = self._executor.poll().items()
        return any(is_alive(state) or self._restarts[name].is_pending for name, state in states)

    def _has_finished(self, name: str, state: Ended) -> bool:
        return self._is_finishing and state.status == 0 and not self._restarts[name].is_pending

    def hurry(self) -> None:
        """Shortens the wait of `finish`, for an interrupted run."""
        self._finish_s = HURRIED_S

    def finish(self) -> None:
        """Tells the observers that the run has ended, and waits for them to end."""
        if not self._observers:
            return
        self._is_finishing = True
        try:
            self._end.parent.mkdir(exist_ok=True)
            write_atomically(self._end, "")
        except OSError as error:
            print_message(f"warning: the observers are not told that the run has ended: {one_line(error)}")
        deadline = time.monotonic() + self._finish_s
        while self.update(time.monotonic()):
            if time.monotonic() > deadline:
                self._warn_of_unfinished()
                return
            time.sleep(POLL_S)

    def close(self) -> None:
        self._executor.close()

    def _start(self, name: str) -> None:
        environment = {"PYTHONPATH": importable(), "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = (*self._commands[name], *self._observers[name].with_run)
        process = Process(command, environment, self._logs.begin(name))
        try:
            self._executor.start(name, process)
        except OSError as error:
            self._restarts[name].stop()
            self._warn(name, f"{name} cannot be started: {one_line(error)}")

    def _print_urls(self) -> None:
        for file, printed in self._urls.items():
            with contextlib.suppress(OSError):  # the observer has not written it yet
                url = file.read_text().strip()
                if url not in ("", printed):
                    self._urls[file] = url
                    print_message(f"view the run at {url}")

    def _handle_end(self, name: str, state: Ended, now: float) -> None:
        restarts = self._restarts[name]
        if restarts.is_spent:
            return
        if not restarts.is_pending:
            restarts.record_end(now, state.status)
        if restarts.is_spent:
            self._warn(name, f"{name} {in_words(state.status)}; {self._logs.see(name, state.status)}")
        elif restarts.is_due(now):
            self._start(name)

    def _warn_of_unfinished(self) -> None:
        for name, state in self._executor.poll().items():
            if is_alive(state) or self._restarts[name].is_pending:
                self._warn(name, f"{name} has not finished within {self._finish_s:g} s of the run's end")

    def _warn(self, name: str, why: str) -> None:
        command = shlex.join(("python", *self._commands[name][1:]))
        repeated = f"this command {self._observers[name].repeated}: {command}"
        print_message(f"warning: {why}; the run does not need it, and {repeated}")
