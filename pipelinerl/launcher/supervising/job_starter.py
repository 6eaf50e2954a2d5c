"""Starts the jobs of a run in their places, and finds in their logs the last words of those that ended."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from pipelinerl.launcher.executors.base import Executor, Fate, Lost, Process, Slot
from pipelinerl.launcher.jobs import Job
from pipelinerl.launcher.placing import PlacedRun
from pipelinerl.launcher.supervising.ends import in_words
from pipelinerl.launcher.wants import Role

SECRETLESS: tuple[Role, ...] = ("judging", "transport")  # the jobs that are given none of the run's secrets
RAISED = re.compile(r"(\[rank\d+\]: )?[A-Za-z_][\w.]*(Error|Exception)\b")  # the last line of a traceback
ERROR = re.compile(r".*\b(ERROR|CRITICAL|FATAL)\b|(?i:fatal|error)\b|what\(\):")
IGNORED = re.compile(r"(?m)^Exception ignored in.*\n(?:Traceback.*\n(?:[ \t].*\n)*.*\n?)?")  # ends nothing
NEWS = re.compile(r".*\b(INFO|DEBUG)\b")  # no reason for an end


class JobStarter:
    """roles: of every job that was started. slots: the places of all jobs."""

    def __init__(self, placed: PlacedRun):
        self._planner = placed.planner
        self._executor: Executor = placed.executor
        self._logs = JobLogs(placed.run_dir / "logs")
        self._grace_s = placed.config.world.stop_timeout_s
        self.slots: dict[str, Slot] = dict(placed.slots)
        self.roles: dict[str, Role] = {}

    def start(self, name: str, role: Role) -> Job:
        """Starts the process of a job in its place."""
        self.roles[name] = role
        job = self._planner.job(name, role, self.slots)
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

    def how_it_ended(self, name: str, fate: Fate) -> str:
        """Returns how a job has ended, with its last words."""
        if isinstance(fate, Lost):
            return f"{name} is lost: {fate.why}"
        return f"{name} {in_words(fate.status)}; {self.last_words(name, fate.status)}"

    def last_words(self, name: str, status: int = 0) -> str:
        """Returns where the log of its last process is, and the line in it that says the most."""
        return self._logs.see(name, status)


class Begin(NamedTuple):
    """Where in a log a process begins. The guard begins a new file when a log is full."""

    inode: int
    offset: int


class JobLogs:
    """Knows the log of each job, and from where on its newest process writes there."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._begins: dict[str, Begin] = {}

    def path(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def begin(self, name: str) -> Path:
        """Takes note that a process of this job is started now; returns its log."""
        path = self.path(name)
        self._begins.pop(name, None)
        if path.exists():
            found = path.stat()
            self._begins[name] = Begin(found.st_ino, found.st_size)
        return path

    def see(self, name: str, status: int = 0) -> str:
        """Returns where the log is, with its last words. `status` is that of the process."""
        path = self.path(name)
        said = last_words(self._newest(name), was_killed=status < 0) if path.exists() else ""
        return f"see {path}" + (f" ({said})" if said else "")

    def _newest(self, name: str) -> str:
        """Returns what the newest process has written, since the log began anew at most."""
        with self.path(name).open("rb") as log:
            begin = self._begins.get(name)
            if begin and begin.inode == os.fstat(log.fileno()).st_ino:
                log.seek(begin.offset)
            return log.read().decode(errors="replace")


def last_words(text: str, was_killed: bool = False) -> str:
    """Returns the line that says why a process has ended, or "".

    It is the last error that was raised, or else the last line. Where a signal ended the process, it is the
    last line if that is an error: any other was written before anything went wrong.
    """
    lines = [line.strip() for line in IGNORED.sub("", text).strip().splitlines()]
    raised = [line for line in lines if RAISED.match(line)]  # what follows a traceback is noise
    if raised and not was_killed:
        return raised[-1]
    last = lines[-1] if lines else ""
    is_error = RAISED.match(last) or ERROR.match(last)
    return last if is_error or not (was_killed or NEWS.match(last)) else ""
