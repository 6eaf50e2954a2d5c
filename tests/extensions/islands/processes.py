"""Islands and their lighthouse as processes, which tests stop, kill and start again."""

import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from contracts.support.addresses import LOOPBACK
from pipelinerl.paths import ROOT
from tests.limits import HANG_S

LIMITS = {"wait_s": HANG_S, "timeout_s": HANG_S}  # for the others, and of an exchange
LIGHTHOUSE = Path(sys.executable).with_name("torchft_lighthouse")


class LighthouseProcess:
    """A lighthouse that waits for islands for so long: join_s once most have come, dead_s without a sign."""

    def __init__(self, port: int, join_s: float = 20.0, dead_s: float = 5.0):
        self.url = f"http://{LOOPBACK}:{port}"
        self._at = LOOPBACK, port
        self._command = [LIGHTHOUSE, "--min_replicas", "1"]
        self._command += ["--bind", f"{LOOPBACK}:{port}", "--join_timeout_ms", str(int(1000 * join_s))]
        self._command += ["--heartbeat_timeout_ms", str(int(1000 * dead_s))]
        self.start()

    def start(self) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(self._command, cwd=ROOT, **quiet)
        while not self._listens():
            if self._process.poll() is not None:
                raise RuntimeError(f"the lighthouse does not listen at {self.url}")
            time.sleep(0.05)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(self._at) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class IslandProcess:
    """An island, and the lines that it has printed since the last look."""

    def __init__(self, directory: Path, lighthouse: str, name: str, **options: object):
        given = LIMITS | {"lighthouse": lighthouse, "island": name, "every": 4} | options
        command = [
            sys.executable,
            "-m",
            "tests.extensions.islands.one_island",
            str(directory),
            json.dumps(given),
        ]
        self.name = name
        self.log = directory / f"{name}.log"
        self._lines: queue.Queue[dict] = queue.Queue()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(json.loads(line))

    def next(self, wanted: Callable[[dict], bool] = lambda line: True) -> list[dict]:
        """Returns the lines up to the first one that is wanted."""
        lines = []
        while not lines or not wanted(lines[-1]):
            try:
                lines.append(self._lines.get(timeout=HANG_S))
            except queue.Empty:
                log = self.log.read_text()[-2000:]
                raise AssertionError(f"{self.name} after {lines[-1:]}: {log}") from None
        return lines

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Ends the island as it would end by itself. Returns its exit status."""
        self._process.stdin.close()
        return self._process.wait(HANG_S)


def together(islands: int) -> Callable[[dict], bool]:
    return lambda line: line["alone"] == 0 and line["islands"] == islands


def alone(line: dict) -> bool:
    return line["alone"] == 1


def _anchors(lines: list[dict]) -> dict[float, str]:
    return {line["round"]: line["anchor"] for line in lines if not line["alone"]}


def same_where_both_were(one: list[dict], other: list[dict]) -> int:
    """Asserts that the anchors of common rounds are the same. Returns the number of them."""
    mine, theirs = _anchors(one), _anchors(other)
    common = mine.keys() & theirs.keys()
    assert {round: mine[round] for round in common} == {round: theirs[round] for round in common}
    return len(common)
