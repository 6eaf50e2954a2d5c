"""Starts the jobs of a run, and finds in their logs why they ended."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from pipelinerl.launcher.executors.base import Executor, JobState, Lost, Placement, Process
from pipelinerl.launcher.jobs import Job, PlacedRun
from pipelinerl.launcher.resource_requests import Role
from pipelinerl.launcher.supervising.failures import in_words

SECRETLESS: tuple[Role, ...] = ("judging", "transport")  # jobs that get none of the run's secrets
RAISED = re.compile(r"(\[rank\d+\]: )?([A-Za-z_][\w.]*)?(Error|Exception)\b|panic: ")  # of Python, Node, Go
ERROR = re.compile(r".*\b(ERROR|CRITICAL|FATAL)\b|(?i:fatal|error)\b|what\(\):")
IGNORED = re.compile(r"(?m)^Exception ignored in.*\n(?:Traceback.*\n(?:[ \t].*\n)*.*\n?)?")
ROUTINE = re.compile(r".*\b(INFO|DEBUG)\b")


class JobStarter:
    """roles: the role of every job that was started. placements: of all jobs."""

    def __init__(self, placed: PlacedRun):
        self._planner = placed.planner
        self._executor: Executor = placed.executor
        self._logs = JobLogs(placed.run_dir / "logs")
        self._grace_s = placed.config.world.stop_timeout_s
        self.placements: dict[str, Placement] = dict(placed.placements)
        self.roles: dict[str, Role] = {}

    def start(self, name: str, role: Role) -> Job:
        """Starts the process of a job in its placement."""
        self.roles[name] = role
        job = self._planner.job(name, role, self.placements)
        process = Process(
            job.command,
            job.environment,
            self._logs.begin(name),
            job.has_whole_environment,
            self._grace_s,
            ends_if_stopped=job.role in SECRETLESS,
            may_be_forked=job.role not in SECRETLESS,
        )
        self._executor.start(name, process)
        return job

    def how_it_ended(self, name: str, state: JobState) -> str:
        """Returns a message that says how a job ended and why."""
        if isinstance(state, Lost):
            return f"{name} is lost: {state.why}"
        return f"{name} {in_words(state.status)}; {self.last_words(name, state.status)}"

    def last_words(self, name: str, status: int = 0) -> str:
        """Returns the path of the job's log, and the line in it that explains the end."""
        return self._logs.see(name, status)


class Begin(NamedTuple):
    """The position in a log at which a process begins. The guard begins a new file when a log is full."""

    inode: int
    offset: int


class JobLogs:
    """The log of each job, and where its newest process begins in it."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._begins: dict[str, Begin] = {}

    def path(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def begin(self, name: str) -> Path:
        """Must be called before a process of the job is started. Returns its log."""
        path = self.path(name)
        self._begins.pop(name, None)
        if path.exists():
            found = path.stat()
            self._begins[name] = Begin(found.st_ino, found.st_size)
        return path

    def see(self, name: str, status: int = 0) -> str:
        """Returns the path of the log with its last words. status: exit status of the process."""
        path = self.path(name)
        words = last_words(self._newest(name), was_killed=status < 0) if path.exists() else ""
        return f"see {path}" + (f" ({words})" if words else "")

    def _newest(self, name: str) -> str:
        """Returns the output of the newest process in the current file of the log."""
        with self.path(name).open("rb") as log:
            begin = self._begins.get(name)
            if begin and begin.inode == os.fstat(log.fileno()).st_ino:
                log.seek(begin.offset)
            return log.read().decode(errors="replace")


def last_words(text: str, was_killed: bool = False) -> str:
    """Returns the line of a log that explains why its process ended, or "".

    This is the last raised error, or else the last line. After a kill, only an error in the last line counts,
    because earlier lines precede the kill's cause.
    """
    lines = [line.strip() for line in IGNORED.sub("", text).strip().splitlines()]
    raised = [line for line in lines if RAISED.match(line)]  # lines after a traceback explain nothing
    if raised and not was_killed:
        return raised[-1]
    last = lines[-1] if lines else ""
    is_error = RAISED.match(last) or ERROR.match(last)
    return last if is_error or not (was_killed or ROUTINE.match(last)) else ""
