"""The supervisor: starts the planned jobs of a node, watches them, and ends them all.

The end of the actor, the preprocessor, the trainer or the reference server ends the run, on whichever node.
Another server's end does so only when none is left on any. The judging service is started again.

Every job is a session of its own, so that its children end with it. The kernel (on Linux) signals it when
the launcher dies, so no process is left.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.launcher.jobs import Job
from pipelinerl.launcher.restarts import Restarts
from pipelinerl.paths import OWNER_ALONE
from pipelinerl.process import REDIS_VARIABLE

POLL_S = 0.25
SERVING = ("server", "reference", "judging")
RAISED = re.compile(r"(\[rank\d+\]: )?[A-Za-z_][\w.]*(Error|Exception)\b")  # the last line of a traceback


OF_THE_LAUNCHER = re.compile(  # a secret, and its own place in a job of several launchers
    rf"{REDIS_VARIABLE}|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+)"
)


class JobFailedError(Exception):
    """A process that the run needs has ended."""


@dataclass(frozen=True)
class NodeState:
    """The state of the jobs of one node."""

    servers: int = 0  # that live
    working: bool = False  # whether a worker has yet to end
    reference: bool = False  # whether the reference server is here
    failure: str | None = None  # of a job that the run cannot go on without
    last_log_line: str | None = None  # from a log of its servers, when none is alive


def is_over(states: Iterable[NodeState]) -> bool:
    """Whether every worker of all nodes has ended well. Raises JobFailedError when one has not."""
    states = list(states)
    for state in states:
        if state.failure:
            raise JobFailedError(state.failure)
    working = any(state.working for state in states)
    if working and not any(state.servers for state in states):
        last_lines = [state.last_log_line for state in states if state.last_log_line]
        raise JobFailedError(f"no inference server is left; {last_lines[0]}")
    return not working


class Supervisor:
    def __init__(self, jobs: list[Job], run_dir: Path, stop_timeout_s: float):
        self._jobs = jobs
        self._logs = run_dir / "logs"
        self._stop_timeout_s = stop_timeout_s
        self._processes: dict[Job, subprocess.Popen] = {}
        self._log_begins: dict[Job, int] = {}  # what an earlier launch had written by then
        self._restarts = Restarts()  # of the judging service

    def run(self, ended: Callable[[NodeState], bool]) -> None:
        """Starts all jobs; returns once `ended`, called a few times a second, returns true or raises.

        Whatever happens, no job is left running.
        """
        try:
            for job in self._jobs:
                self._processes[job] = self._start(job)
            while not ended(self._poll()):
                time.sleep(POLL_S)
        finally:
            self._end_all()

    def _start(self, job: Job) -> subprocess.Popen:
        self._logs.mkdir(mode=OWNER_ALONE, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not OF_THE_LAUNCHER.fullmatch(name)}
        if job.has_whole_environment:
            inherited = {}
        with (self._logs / f"{job.name}.log").open("ab") as log:
            self._log_begins[job] = log.tell()
            return subprocess.Popen(
                job.command,
                env=inherited | job.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _poll(self) -> NodeState:
        self._restart_judging()
        codes = {job: process.poll() for job, process in self._processes.items()}
        servers = [job for job in codes if job.role == "server"]
        alive = sum(codes[job] is None for job in servers)
        return NodeState(
            servers=alive,
            working=any(code is None for job, code in codes.items() if job.role not in SERVING),
            reference=any(job.role == "reference" for job in codes),
            failure=self._failure(codes),
            last_log_line=self._last_log_line(servers[0]) if servers and not alive else None,
        )

    def _restart_judging(self) -> None:
        """Starts it again some time after it has ended, and ends it where it was stopped for good."""
        for job in [job for job in self._jobs if job.role == "judging"]:
            process = self._processes[job]
            if process.poll() is None:
                if is_stopped(process.pid):
                    _signal([process], signal.SIGKILL)
            elif self._restarts.is_due(process.returncode):
                _signal([process], signal.SIGKILL)  # what it has left behind
                self._processes[job] = self._start(job)

    def _failure(self, codes: dict[Job, int | None]) -> str | None:
        for job, code in codes.items():
            if job.role == "judging":
                if self._restarts.is_spent:
                    return f"{job.name} ended with status {code}; {self._last_log_line(job)}"
            elif job.role != "server" and (code or (job.role == "reference" and code is not None)):
                return f"{job.name} ended with status {code}; {self._last_log_line(job)}"
        return None

    def _last_log_line(self, job: Job) -> str:
        path = self._logs / f"{job.name}.log"
        log = path.read_bytes()[self._log_begins[job] :].decode(errors="replace")
        lines = log.strip().splitlines()
        raised = [line for line in lines if RAISED.match(line)]  # what follows a traceback is noise
        last_line = (raised or lines)[-1:]
        return f"see {path}" + "".join(f" ({line.strip()})" for line in last_line)

    def _end_all(self) -> None:
        for ignored in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ignored, signal.SIG_IGN)  # a second Ctrl-C must not leave anything behind
        servers = {job: p for job, p in self._processes.items() if job.role in SERVING}
        # The workers first: a server's end is not to be recorded as rollouts that failed.
        self._end([p for job, p in self._processes.items() if job not in servers])
        self._end(list(servers.values()))

    def _end(self, processes: list[subprocess.Popen]) -> None:
        _signal(processes, signal.SIGTERM)
        deadline = time.monotonic() + self._stop_timeout_s
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
        _signal(processes, signal.SIGKILL)
        for process in processes:
            process.wait()


def is_stopped(pid: int) -> bool:
    """Whether a signal keeps the process from doing anything."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def _signal(processes: list[subprocess.Popen], number: signal.Signals) -> None:
    """To each job's whole session: what the job itself started ends too, even if it is gone."""
    for process in processes:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            continue
