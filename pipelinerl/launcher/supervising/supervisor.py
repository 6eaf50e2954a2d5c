"""The supervisor: starts the jobs of a run in their places, watches them, and ends them all.

What an end means depends on the job. The workers begin again together (`worker_jobs`), a service is started
again where it was (`service_jobs`), and a server is replaced (`serving`). That of an observer means nothing
for the run (`observer_jobs`). Where the jobs run is the executor's matter.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from contracts.records import Resumed
from pipelinerl.components import build_observers
from pipelinerl.errors import PlanError
from pipelinerl.launcher import interruptions
from pipelinerl.launcher.executors.base import Fate, Slot
from pipelinerl.launcher.jobs import engine_of
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.placing import PlacedRun
from pipelinerl.launcher.resume import describe, resume_from_newest
from pipelinerl.launcher.supervising.ends import JobFailedError, have_ended_well, is_alive
from pipelinerl.launcher.supervising.events import RestartLog
from pipelinerl.launcher.supervising.job_starter import JobStarter
from pipelinerl.launcher.supervising.observer_jobs import ObserverJobs
from pipelinerl.launcher.supervising.scaling import ServersAsked
from pipelinerl.launcher.supervising.server_job import Means
from pipelinerl.launcher.supervising.service_jobs import ServiceJobs
from pipelinerl.launcher.supervising.serving import Servers
from pipelinerl.launcher.supervising.worker_jobs import WorkerJobs
from pipelinerl.launcher.wants import members_of, server_want
from pipelinerl.streams import Streams, StreamWriter
from pipelinerl.streams.of_run import StreamsServer

POLL_S = 0.25
END_POLL_S = 0.02
KILL_S = 15.0  # beyond its grace, for what is killed to be gone


class Supervisor:
    """streams: of the run. events: the writer of `launcher_events`. server: that of the streams."""

    def __init__(
        self, placed: PlacedRun, streams: Streams, events: StreamWriter, server: StreamsServer | None
    ):
        self._server = server
        self._run_dir = placed.run_dir
        self._config = config = placed.config
        self._streams = streams
        self._events = events
        self._executor = placed.executor
        self._starter = starter = JobStarter(placed)
        self._observers = ObserverJobs(build_observers(config), placed.run_dir)
        self._asked = ServersAsked(placed.run_dir)
        self._told = told = RestartLog(placed.run_dir, events)
        self._services = ServiceJobs(placed, starter, streams, told)
        self._workers = WorkerJobs(
            placed, starter, streams, events, told, self._resume, self._services.start_one
        )
        self._servers = Servers(
            [want for role, want in members_of(config) if role == "server"],
            Means(
                self._executor,
                self._start_server,
                events,
                config.restarts.servers,
                lambda: told.count("servers"),
                starter.last_words,
            ),
            streams,
            config.world.server_start_timeout_s,
        )

    def run(self, show: Callable[[int], None]) -> None:
        """Starts all jobs; returns once every worker has ended well. Raises JobFailedError if none can.

        `show` is told the number of servers alive, a few times a second. Whatever happens, no job is left.
        """
        try:
            self._servers.tend(self._executor.look(), time.monotonic())
            self._services.start()
            self._workers.start()
            self._observers.start()
            while not self._is_over(show):
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            self._observers.hurry()
            raise
        finally:
            self._end_all(show)

    def _start_server(self, name: str, slot: Slot) -> tuple[str, str]:
        self._starter.slots[name] = slot
        return self._starter.start(name, "server").url, engine_of(self._config, name).module

    # --- while it runs ------------------------------------------------------------------------

    def _is_over(self, show: Callable[[int], None]) -> bool:
        now = time.monotonic()
        self._observers.tend(now)
        fates = self._executor.look()
        if have_ended_well(fates, self._workers.names):
            return True
        if self._server:
            if self._server.is_away():
                return False
            for why in self._server.restarts():
                self._told.record("services", [self._server.name], why)
        self._workers.tend(fates, now)
        fates = self._executor.look()
        self._services.tend(fates, now)
        if question := self._asked.read():
            self._asked.answer(question, self._scale(question.number, fates, now))
            fates = self._executor.look()
        self._servers.tend(fates, now)
        fates = self._executor.look()
        show(self._servers.serving(fates))
        if not self._servers.may_serve(fates, now):
            why = self._servers.refusal or self._starter.last_words(self._servers.ended_last)
            raise JobFailedError(f"no inference server is left; {why}")
        return self._workers.are_over

    def _resume(self) -> Resumed | None:
        """Says where the workers go on, and which servers there are. None where the run has ended."""
        resumed = resume_from_newest(self._streams, self._events, self._run_dir)
        if resumed is not None:
            say(describe(resumed))
            self._servers.join_again()
        return resumed

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

    # --- its end ------------------------------------------------------------------------------

    def _end_all(self, show: Callable[[int], None]) -> None:
        interruptions.ignore()  # a second Ctrl-C must not leave anything behind
        try:
            # The workers first: a server's end is not to be recorded as rollouts that failed.
            self._end(self._workers.names)
            show(self._servers.serving(self._executor.look()))  # the last metrics, before observers are told
            self._end([name for name in self._starter.roles if name not in self._workers.names])
        finally:
            self._executor.close()
            self._end_observers()

    def _end_observers(self) -> None:
        try:
            self._observers.finish()
        finally:
            self._observers.close()

    def _end(self, names: Iterable[str]) -> None:
        fates = self._executor.look()
        names = [name for name in names if is_alive(fates.get(name))]
        self._executor.end(names)
        deadline = time.monotonic() + self._config.world.stop_timeout_s + KILL_S
        while any(is_alive(self._executor.look()[name]) for name in names):
            if time.monotonic() > deadline:
                return
            time.sleep(END_POLL_S)
