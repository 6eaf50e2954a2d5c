"""Starts the jobs of a run in their places, and finds the last words of those that have ended."""

import re
from pathlib import Path

from pipelinerl.launcher.executors.base import Executor, Fate, Lost, Process, Slot
from pipelinerl.launcher.jobs import Job
from pipelinerl.launcher.placing import PlacedRun
from pipelinerl.launcher.wants import Role

RAISED = re.compile(r"(\[rank\d+\]: )?[A-Za-z_][\w.]*(Error|Exception)\b")  # the last line of a traceback


class JobStarter:
    """roles: of every job that was started. slots: the places of all jobs."""

    def __init__(self, placed: PlacedRun):
        self._planner = placed.planner
        self._executor: Executor = placed.executor
        self._logs = placed.run_dir / "logs"
        self._grace_s = placed.config.world.stop_timeout_s
        self._log_begins: dict[str, int] = {}  # what an earlier process had written by then
        self.slots: dict[str, Slot] = dict(placed.slots)
        self.roles: dict[str, Role] = {}

    def start(self, name: str, role: Role) -> Job:
        """Starts the process of a job in its place."""
        self.roles[name] = role
        job = self._planner.job(name, role, self.slots)
        log = self._log(name)
        self._log_begins[name] = log.stat().st_size if log.exists() else 0
        process = Process(
            job.command,
            job.environment,
            log,
            job.has_whole_environment,
            self._grace_s,
            ends_if_stopped=job.role == "judging",
        )
        self._executor.start(name, process)
        return job

    def how_it_ended(self, name: str, fate: Fate) -> str:
        """Returns how a job has ended, with its last words."""
        if isinstance(fate, Lost):
            return f"{name} is lost: {fate.why}"
        return f"{name} ended with status {fate.status}; {self.last_words(name)}"

    def last_words(self, name: str) -> str:
        """Returns where the log of its last process is, and the line in it that says the most."""
        path = self._log(name)
        text = path.read_bytes()[self._log_begins.get(name, 0) :] if path.exists() else b""
        lines = text.decode(errors="replace").strip().splitlines()
        raised = [line for line in lines if RAISED.match(line)]  # what follows a traceback is noise
        last = (raised or lines)[-1:]
        return f"see {path}" + "".join(f" ({line})" for line in last)

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
