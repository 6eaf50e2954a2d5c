"""Starts the jobs of a run in their places, and finds the last words of those that have ended."""

from pipelinerl.launcher.executors.base import Executor, Fate, Lost, Process, Slot
from pipelinerl.launcher.jobs import Job
from pipelinerl.launcher.placing import PlacedRun
from pipelinerl.launcher.supervising.fates import in_words
from pipelinerl.launcher.supervising.job_logs import JobLogs
from pipelinerl.launcher.wants import Role

SECRETLESS: tuple[Role, ...] = ("judging", "transport")  # the jobs that are given none of the run's secrets


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
