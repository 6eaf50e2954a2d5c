"""The launches of one run: the launcher as a user starts it, and its output."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.chaos.news import News
from benchmarks.chaos.plan import MARK
from benchmarks.ray_nodes import RayNodes
from benchmarks.relays import Relays
from benchmarks.run_processes import guards_of, processes_of, redis_of
from pipelinerl.paths import ROOT

Start = Callable[[Sequence[str], Mapping[str, str], Path, Path], subprocess.Popen[bytes]]
ENDS_WITHIN_S = 30.0  # time for every process of a run to end after its launcher
POLL_S = 0.1


class Launches:
    """Runs at most one launcher at a time. `console` is a file that all of them write to.

    start: starts a Python program with the given arguments, environment, standard output and standard error.
    nodes: of the run's Ray cluster, if it has one. relays: of its weights; there may be none.
    """

    def __init__(
        self,
        run_dir: Path,
        console: Path,
        settings: Sequence[str],
        start: Start,
        nodes: RayNodes | None,
        relays: Relays,
    ):
        self._start = start
        self.nodes = nodes
        self.relays = relays
        self.run_dir = run_dir
        self.settings = list(settings)
        self.console = console
        self._said: list[tuple[float, str]] = []
        self._read = 0
        self._begin([])

    @property
    def pid(self) -> int:
        return self._launcher.pid

    @property
    def status(self) -> int | None:
        """The exit status of the launcher; None while it is running."""
        return self._launcher.poll()

    def again(self, *settings: str) -> None:
        """Launches the run again, to resume."""
        self._begin(["resume=true", *settings])

    def look(self) -> None:
        """Reads new records and new output."""
        self.news.read()
        with self.console.open() as file:
            file.seek(self._read)
            lines = file.read().splitlines()
            self._read = file.tell()
        self._said += [(time.time(), line) for line in lines if line.strip()]

    def said_since(self, since: float) -> list[tuple[float, str]]:
        """Returns the launcher's lines on standard error after a time, each with its time."""
        return [(at, line) for at, line in self._said if at > since]

    def wait(self, within_s: float) -> int | None:
        """Returns the exit status, or None if the launcher does not end in time."""
        try:
            return self._launcher.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def interrupt(self) -> None:
        """Sends SIGTERM to the launcher, because a shell's background jobs ignore Ctrl-C."""
        self._launcher.send_signal(signal.SIGTERM)

    def held(self) -> set[int]:
        """Returns the launcher, the keepers of its jobs on Ray, and all their descendants."""
        return {pid for root in [self.pid, *self._keepers()] for pid in _with_all_below(root)}

    def left_behind(self) -> list[int]:
        """Returns the processes of a run that should have ended, after waiting for their end."""
        deadline = time.monotonic() + ENDS_WITHIN_S
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left

    def kill_all(self) -> None:
        """Kills the launcher and all processes that it has started."""
        for pid in [self.pid, *processes_of(self.run_dir)]:
            kill(pid, signal.SIGKILL)
        self._launcher.wait()

    def _processes(self) -> list[int]:
        redis = redis_of(self.run_dir)
        found = [*processes_of(self.run_dir), *guards_of(self.run_dir), *self._keepers()]
        return [*found, redis] if redis else found

    def _keepers(self) -> list[int]:
        return self.nodes.keepers() if self.nodes else []

    def _begin(self, more: Sequence[str]) -> None:
        own = [] if more else self.settings
        arguments = ["launch.py", f"run_dir={self.run_dir}", *own, *more]
        environment = os.environ | {MARK: str(self.run_dir)}
        environment |= self.nodes.environment if self.nodes else {}
        self.console.touch()
        self._launcher = self._start(arguments, environment, self.console.with_suffix(".out"), self.console)
        self.news = News(self.run_dir)


def _with_all_below(pid: int) -> set[int]:
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.NoSuchProcess:
        return set()


def start_program(
    arguments: Sequence[str], environment: Mapping[str, str], shown: Path, said: Path
) -> subprocess.Popen[bytes]:
    """Starts a program with this interpreter. Its output is appended to the files."""
    with shown.open("ab") as out, said.open("ab") as err:
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=out, stderr=err
        )


def kill(pid: int, number: int) -> None:
    """Sends a signal to a process if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
