"""The supervisor: starts the jobs of a run in their places, watches them, and ends them all.

What an end means depends on the job. That of a worker ends the run, a service is started again where it was,
and a server is replaced (`serving`). Where the jobs run is the executor's matter.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from pipelinerl.errors import PlanError
from pipelinerl.launcher import interruptions
from pipelinerl.launcher.executors.base import Ended, Fate, Lost, Process, Slot
from pipelinerl.launcher.fates import (
    SERVICE_ROLES,
    WORKER_ROLES,
    JobFailedError,
    failed_worker,
    have_ended_well,
    in_words,
    is_alive,
    names_of,
)
from pipelinerl.launcher.job_logs import JobLogs
from pipelinerl.launcher.jobs import Job, engine_of
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.placing import PlacedRun
from pipelinerl.launcher.restarts import of_a_service
from pipelinerl.launcher.scaling import ServersAsked
from pipelinerl.launcher.serving import Servers
from pipelinerl.launcher.trainer_news import TrainerNews
from pipelinerl.launcher.wants import members_of, server_want
from pipelinerl.streams import Streams, StreamWriter

POLL_S = 0.25
END_POLL_S = 0.02
KILL_S = 15.0  # beyond its grace, for what is killed to be gone


class Supervisor:
    """streams: of the run. events: the writer of `launcher_events`."""

    def __init__(self, placed: PlacedRun, streams: Streams, events: StreamWriter):
        self._config = placed.config
        self._planner = placed.planner
        self._executor = placed.executor
        self._slots = dict(placed.slots)
        self._logs = JobLogs(placed.run_dir / "logs")
        self._stop_timeout_s = placed.config.world.stop_timeout_s
        members = members_of(placed.config)
        self._roles = {want.name: role for role, want in members}
        self._services = {name: of_a_service() for name in names_of(self._roles, SERVICE_ROLES)}
        self._workers = names_of(self._roles, WORKER_ROLES)
        self._failed_at: float | None = None
        self._asked = ServersAsked(placed.run_dir)
        self._servers = Servers(
            [want for role, want in members if role == "server"],
            self._executor,
            self._start_server,
            events,
            TrainerNews(streams),
            placed.config.world,
        )

    def run(self, show: Callable[[int], None]) -> None:
        """Starts all jobs; returns once every worker has ended well. Raises JobFailedError when one has not.

        `show` is told the number of servers alive, a few times a second. Whatever happens, no job is left.
        """
        try:
            self._servers.tend(self._executor.look(), time.monotonic())
            for name in [*self._services, *self._workers]:
                self._start(name)
            while not self._is_over(show):
                time.sleep(POLL_S)
        finally:
            self._end_all()

    def _start_server(self, name: str, slot: Slot) -> tuple[str, str]:
        self._slots[name] = slot
        self._roles[name] = "server"
        return self._start(name).url, engine_of(self._config, name).module

    def _start(self, name: str) -> Job:
        job = self._planner.job(name, self._roles[name], self._slots)
        process = Process(
            job.command,
            job.environment,
            self._logs.begin(name),
            job.has_whole_environment,
            self._stop_timeout_s,
            ends_if_stopped=job.role == "judging",
        )
        self._executor.start(name, process)
        return job

    # --- while it runs ------------------------------------------------------------------------

    def _is_over(self, show: Callable[[int], None]) -> bool:
        now = time.monotonic()
        fates = self._executor.look()
        self._restart_services(fates, now)
        self._check_workers(fates, now)
        if have_ended_well(fates, self._workers):
            return True
        if question := self._asked.read():
            self._asked.answer(question, self._scale(question.number, fates, now))
            fates = self._executor.look()
        self._servers.tend(fates, now)
        fates = self._executor.look()
        show(self._servers.serving(fates))
        if not self._servers.may_serve(fates, now):
            why = self._servers.refusal or self._logs.see(self._servers.ended_last)
            raise JobFailedError(f"no inference server is left; {why}")
        return False

    def _scale(self, number: int, fates: Mapping[str, Fate], now: float) -> str:
        """Returns why the number stays as it is, or ""."""
        say(f"servers asked for: {number}")
        try:
            wants = [server_want(self._config, index) for index in range(number)]
        except PlanError as error:
            say(f"the number of servers stays: {error}")
            return str(error)
        self._servers.scale(wants, fates, now)
        return ""

    def _restart_services(self, fates: Mapping[str, Fate], now: float) -> None:
        for name, restarts in self._services.items():
            fate = fates[name]
            if isinstance(fate, Lost):
                raise JobFailedError(self._words(name, fate))
            if not isinstance(fate, Ended):
                continue
            if not restarts.is_pending:
                restarts.ended(now, fate.status)
            if restarts.is_spent:
                raise JobFailedError(self._words(name, fate))
            if restarts.is_due(now):
                self._start(name)

    def _check_workers(self, fates: Mapping[str, Fate], now: float) -> None:
        """Raises JobFailedError. Where nodes may be lost, the words wait until it is known whether one is."""
        failed = failed_worker(fates, self._workers)
        if failed is None:
            return
        self._failed_at = self._failed_at or now
        waited = now - self._failed_at >= self._executor.notices_within_s
        if waited or isinstance(fates[failed], Lost):
            raise JobFailedError(self._words(failed, fates[failed]))

    def _words(self, name: str, fate: Ended | Lost) -> str:
        if isinstance(fate, Lost):
            return f"{name} is lost: {fate.why}"
        return f"{name} {in_words(fate.status)}; {self._logs.see(name, fate.status)}"

    # --- its end ------------------------------------------------------------------------------

    def _end_all(self) -> None:
        interruptions.ignore()  # a second Ctrl-C must not leave anything behind
        try:
            # The workers first: a server's end is not to be recorded as rollouts that failed.
            self._end(self._workers)
            self._end([name for name in self._roles if name not in self._workers])
        finally:
            self._executor.close()

    def _end(self, names: Iterable[str]) -> None:
        fates = self._executor.look()
        names = [name for name in names if is_alive(fates.get(name))]
        self._executor.end(names)
        deadline = time.monotonic() + self._stop_timeout_s + KILL_S
        while any(is_alive(self._executor.look()[name]) for name in names):
            if time.monotonic() > deadline:
                return
            time.sleep(END_POLL_S)
