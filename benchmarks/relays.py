"""Relays of weights on this machine: processes that a benchmark kills, corrupts and starts again."""

import os
import signal
import subprocess
import sys
import threading
from types import TracebackType

from contracts.support.ports import ReservedPort
from pipelinerl.paths import ROOT


class Relays:
    """Runs a number of relays in front of the origin of one run. Their ports stay the same."""

    def __init__(self, number: int):
        self._origin = ReservedPort()
        self._ports = [ReservedPort() for _ in range(number)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * number
        self._changing = threading.Lock()
        self._closed = False

    @property
    def count(self) -> int:
        return len(self._ports)

    @property
    def settings(self) -> list[str]:
        """The settings of launch.py for a run with `weights=relay` that uses these relays."""
        urls = ",".join(f"http://127.0.0.1:{port.number}" for port in self._ports)
        return [f"weights.origin_port={self._origin.number}", f"weights.relays=[{urls}]"]

    def pid(self, index: int) -> int | None:
        """Returns the process of a relay, or None if it is not running."""
        process = self._processes[index]
        return process.pid if process and process.poll() is None else None

    def start(self, index: int) -> None:
        """Starts the relay if it is not running."""
        with self._changing:
            if not self._closed and self.pid(index) is None:
                self._processes[index] = self._started(self._ports[index].number)

    def signal(self, index: int, number: int) -> None:
        """Sends a signal to the relay if it is running."""
        if pid := self.pid(index):
            os.kill(pid, number)

    def kill(self, index: int, gone_s: float | None = None) -> None:
        """Kills the relay. It is started again after a time, unless that is None."""
        self.signal(index, signal.SIGKILL)
        self._wait(index)
        if gone_s is not None:
            timer = threading.Timer(gone_s, self.start, [index])
            timer.daemon = True
            timer.start()

    def __enter__(self) -> "Relays":
        for index in range(len(self._ports)):
            self.start(index)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with self._changing:
            self._closed = True
        for index in range(len(self._ports)):
            self.kill(index)
        for port in (self._origin, *self._ports):
            port.release()

    def _started(self, port: int) -> subprocess.Popen[bytes]:
        origin = f"http://127.0.0.1:{self._origin.number}"
        command = [sys.executable, "-m", "benchmarks.frail_relay", "--origin", origin, "--port", str(port)]
        return subprocess.Popen(command, cwd=ROOT)

    def _wait(self, index: int) -> None:
        if process := self._processes[index]:
            process.wait()
