"""The supervisor: starts the planned jobs, watches them, and ends them all.

The end of the actor, the preprocessor, the trainer or the reference server ends the run; another server's
end does so only when none is left. Every job is a session of its own, so that its children end with it,
and is told by the kernel (on Linux) when the launcher dies: nothing is left behind.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from pipelinerl.die_with_parent import die_with_parent
from pipelinerl.jobs import Job
from pipelinerl.process import REDIS_VARIABLE

POLL_S = 0.25
RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")  # the last line of a traceback


class JobFailed(Exception):
    """A process ended that the run cannot go on without."""


class Supervisor:
    def __init__(self, jobs: list[Job], run_dir: Path, stop_timeout_s: float):
        self._jobs, self._logs = jobs, run_dir / "logs"
        self._stop_timeout_s = stop_timeout_s
        self._processes: dict[Job, subprocess.Popen] = {}
        self._log_begins: dict[Job, int] = {}  # what an earlier launch had written by then

    def run(self, on_poll: Callable[[int], None]) -> None:
        """Start everything; return once the work is done. Raises JobFailed. `on_poll` is called a few
        times a second with the number of live servers. Whatever happens, nothing is left running."""
        try:
            for job in self._jobs:
                self._processes[job] = self._start(job)
            while not self._done():
                on_poll(len(self._running("server")))
                time.sleep(POLL_S)
        finally:
            self._end_all()

    def _start(self, job: Job) -> subprocess.Popen:
        self._logs.mkdir(exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if name != REDIS_VARIABLE}  # a secret
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

    def _done(self) -> bool:
        """Whether every worker has ended well. Raises JobFailed when one has not."""
        working = False
        for job, process in self._processes.items():
            if job.role == "server":
                continue
            code = process.poll()
            if code or (job.role == "reference" and code is not None):
                raise JobFailed(f"{job.name} ended with status {code}; {self._last_words(job)}")
            working = working or (code is None and job.role != "reference")
        if working and not self._running("server"):
            job = next(job for job in self._jobs if job.role == "server")
            raise JobFailed(f"no inference server is left; {self._last_words(job)}")
        return not working

    def _running(self, role: str) -> list[Job]:
        return [
            job for job, process in self._processes.items() if job.role == role and process.poll() is None
        ]

    def _last_words(self, job: Job) -> str:
        path = self._logs / f"{job.name}.log"
        said = path.read_bytes()[self._log_begins[job] :].decode(errors="replace")
        lines = said.strip().splitlines()
        raised = [line for line in lines if RAISED.match(line)]  # what follows a traceback is noise
        words = (raised or lines)[-1:]
        return f"see {path}" + "".join(f" ({line.strip()})" for line in words)

    def _end_all(self) -> None:
        for impatient in (signal.SIGINT, signal.SIGTERM):
            signal.signal(impatient, signal.SIG_IGN)  # a second Ctrl-C must not leave anything behind
        servers = {job: p for job, p in self._processes.items() if job.role in ("server", "reference")}
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


def _signal(processes: list[subprocess.Popen], number: signal.Signals) -> None:
    """To each job's whole session: what the job itself started ends too, even if it is gone."""
    for process in processes:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            continue
