"""Injects one fault into a running run."""

import contextlib
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.chaos.disk import keep_full
from benchmarks.chaos.launches import Launches, kill
from benchmarks.chaos.plan import Action, Fault
from benchmarks.ray_nodes import raylet_of
from benchmarks.run_processes import jobs_of, redis_of

FIND_S = 120.0  # time to wait for a target that is being restarted
POLL_S = 0.1
BEGINS: dict[Action, int] = {
    "kill": signal.SIGKILL,
    "kill node": signal.SIGKILL,
    "cut tail": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "close port": signal.SIGUSR1,
    "corrupt": signal.SIGUSR2,
    "break off": signal.SIGUSR1,
    "slow": signal.SIGHUP,
}
ENDS: dict[Action, int] = {
    "stop": signal.SIGCONT,
    "corrupt": signal.SIGUSR2,
    "break off": signal.SIGUSR1,
    "slow": signal.SIGHUP,
}


class NoTargetError(Exception):
    """The fault has no target; the message says what is missing."""


@dataclass(frozen=True)
class Struck:
    """A fault that was injected. pid: of its target. until: when it ends, if that is known."""

    at: float
    pid: int
    until: float


def strike(fault: Fault, launches: Launches) -> Struck:
    """Injects the fault. If the fault ends by itself, a thread ends it."""
    if fault.action == "fill disk":
        pid = launches.pid
        threading.Thread(target=keep_full, args=[launches.run_dir.parent, fault.seconds]).start()
    elif fault.action == "truncate log":
        pid = find(fault.target, launches)
        _halve(launches.run_dir / "logs" / f"{fault.target}.log")
    elif fault.action == "kill" and fault.target.startswith("relay-"):
        pid = find(fault.target, launches)
        launches.relays.kill(_number(fault.target), gone_s=fault.seconds)
    else:
        pid = find(fault.target, launches)
        kill(_node_under(pid, launches) if fault.action == "kill node" else pid, BEGINS[fault.action])
        if fault.action in ENDS:
            _later(fault.seconds, pid, ENDS[fault.action])
    now = time.time()
    return Struck(now, pid, now + fault.seconds)


def find(target: str, launches: Launches) -> int:
    """Returns the process of a target. Raises NoTargetError if there is none for long."""
    deadline = time.monotonic() + FIND_S
    while (pid := process_of(target, launches)) is None:
        if time.monotonic() > deadline:
            raise NoTargetError(f"{target} has had no process for {FIND_S:g} s")
        time.sleep(POLL_S)
    return pid


def process_of(target: str, launches: Launches) -> int | None:
    """Returns the current process of a job, of a relay, of the launcher or of the run's Redis server."""
    if target in ("launcher", "disk"):
        return launches.pid if launches.status is None else None
    if target == "redis":
        return redis_of(launches.run_dir)
    if target.startswith("relay-"):
        return launches.relays.pid(_number(target))
    return jobs_of(launches.run_dir).get(target)


def _number(target: str) -> int:
    return int(target.rpartition("-")[2])


def _node_under(pid: int, launches: Launches) -> int:
    """Returns the raylet of the node that a process is on. The head's raylet is never killed."""
    raylet = raylet_of(pid)
    if raylet == launches.nodes.head:
        raise NoTargetError(f"process {pid} is on the node of the cluster's head")
    return raylet


def _later(seconds: float, pid: int, number: int) -> None:
    """Signals this process after a time, unless its pid has been reused by then."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return

    def signal_it() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)

    timer = threading.Timer(seconds, signal_it)
    timer.daemon = True
    timer.start()


def _halve(log: Path) -> None:
    with log.open("rb+") as file:
        file.truncate(log.stat().st_size // 2)
