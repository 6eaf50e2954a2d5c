"""The supervisor: starts the jobs of a run, monitors them, and ends them all.

The reaction to the end of a job depends on its kind. The workers restart together (`worker_jobs`), a service
restarts alone, and a server is replaced (`servers`). The end of an observer has no effect on the run
(`observer_jobs`). Services are the reference server, the judging service, and those of the weight transport.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing

from contracts.records import ReferenceCondemned, Resumed
from pipelinerl.components import build_observers
from pipelinerl.errors import PlanError
from pipelinerl.launcher import terminal
from pipelinerl.launcher.executors.base import Ended, JobState, Placement
from pipelinerl.launcher.jobs import PlacedRun, adopted_url, engine_of
from pipelinerl.launcher.resource_requests import job_specs, server_request
from pipelinerl.launcher.resume import describe, resume_from_newest
from pipelinerl.launcher.supervising.events import EventReader, RestartLog
from pipelinerl.launcher.supervising.failures import (
    SERVICE_ROLES,
    JobFailedError,
    Restarts,
    have_succeeded,
    is_alive,
)
from pipelinerl.launcher.supervising.job_starter import JobStarter
from pipelinerl.launcher.supervising.observer_jobs import ObserverJobs
from pipelinerl.launcher.supervising.scaling import ScaleRequests
from pipelinerl.launcher.supervising.servers import ServerJobContext, Servers
from pipelinerl.launcher.supervising.worker_jobs import WorkerJobs
from pipelinerl.process import REFUSED
from pipelinerl.streams import Streams, StreamWriter
from pipelinerl.streams.of_run import StreamsServer

POLL_S = 0.25
END_POLL_S = 0.02
KILL_S = 15.0  # beyond the grace of a job, until it is killed


class Supervisor:
    """events: the writer of `launcher_events`. server: of the streams, if the launcher started one."""

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
        self._scale_requests = ScaleRequests(placed.run_dir)
        self._restart_log = restart_log = RestartLog(placed.run_dir, events)
        self._services = ServiceJobs(placed, starter, streams, restart_log)
        self._workers = WorkerJobs(
            placed, starter, streams, events, restart_log, self._resume, self._services.start_one
        )
        self._servers = Servers(
            [request for role, request in job_specs(config) if role == "server"],
            ServerJobContext(
                self._executor,
                self._start_server,
                events,
                config.restarts.servers,
                lambda: restart_log.count("servers"),
                starter.last_words,
            ),
            streams,
            config.world.server_start_timeout_s,
        )

    def run(self, show: Callable[[int], None]) -> None:
        """Starts all jobs, and returns once every worker has succeeded. Ends all jobs in any case.

        show: called with the number of servers alive, a few times a second.
        Raises JobFailedError if the run cannot continue.
        """
        try:
            self._servers.update(self._executor.poll(), time.monotonic())
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

    def _start_server(self, name: str, placement: Placement) -> tuple[str, str]:
        self._starter.placements[name] = placement
        engine = engine_of(self._config, name)
        named = "adopted" if adopted_url(self._config, name) else engine.module or engine.command[0]
        return self._starter.start(name, "server").url, named

    def _is_over(self, show: Callable[[int], None]) -> bool:
        now = time.monotonic()
        self._observers.update(now)
        states = self._executor.poll()
        if have_succeeded(states, self._workers.names):
            return True
        if self._server:
            if self._server.is_away():
                return False
            for why in self._server.restarts():
                self._restart_log.record("services", [self._server.name], why)
        self._workers.update(states, now)
        states = self._executor.poll()
        self._services.update(states, now)
        if request := self._scale_requests.read():
            self._scale_requests.answer(request, self._scale(request.servers, states, now))
            states = self._executor.poll()
        self._servers.update(states, now)
        states = self._executor.poll()
        show(self._servers.num_serving(states))
        if not self._servers.can_serve(states, now):
            why = self._servers.refusal or self._starter.last_words(self._servers.ended_last)
            raise JobFailedError(f"no inference server is left; {why}")
        return self._workers.are_done

    def _resume(self) -> Resumed | None:
        """Records how the workers resume, and the servers. Returns None if the run has ended."""
        resumed = resume_from_newest(self._streams, self._events, self._run_dir)
        if resumed is not None:
            terminal.print_message(describe(resumed))
            self._servers.join_again()
        return resumed

    def _scale(self, number: int, states: Mapping[str, JobState], now: float) -> str:
        """Changes the number of servers. Returns the reason for a refusal, or ""."""
        terminal.print_message(f"servers asked for: {number}")
        try:
            requests = [server_request(self._config, index) for index in range(number)]
        except PlanError as error:
            terminal.print_message(f"the number of servers stays: {error}")
            return str(error)
        self._servers.scale(requests, states, now)
        return ""

    def _end_all(self, show: Callable[[int], None]) -> None:
        terminal.ignore_signals()  # a second Ctrl-C must not leave processes behind
        try:
            # The workers first, because they would record the end of the servers as failed rollouts.
            self._end(self._workers.names)
            # Writes the last metrics, before the observers learn of the end.
            show(self._servers.num_serving(self._executor.poll()))
            self._end([name for name in self._starter.roles if name not in self._workers.names])
        finally:
            self._executor.close()
            with closing(self._observers):
                self._observers.finish()

    def _end(self, names: Iterable[str]) -> None:
        states = self._executor.poll()
        names = [name for name in names if is_alive(states.get(name))]
        self._executor.end(names)
        deadline = time.monotonic() + self._config.world.stop_timeout_s + KILL_S
        while any(is_alive(self._executor.poll()[name]) for name in names):
            if time.monotonic() > deadline:
                return
            time.sleep(END_POLL_S)


class ServiceJobs:
    def __init__(self, placed: PlacedRun, starter: JobStarter, streams: Streams, restart_log: RestartLog):
        specs = job_specs(placed.config)
        self._roles = {request.name: role for role, request in specs if role in SERVICE_ROLES}
        limit = placed.config.restarts.services  # of one service within ten minutes
        self._restarts = {name: Restarts(limit, shortest_s=0.5, longest_s=30) for name in self._roles}
        self._executor = placed.executor
        self._starter = starter
        self._events = EventReader(streams, "preprocessor_events", ReferenceCondemned)
        self._condemned_why = ""  # reason, until the reference server is restarted
        self._restart_log = restart_log

    def start(self) -> None:
        for name in self._roles:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        if name == "reference":
            self._condemned_why = ""
        self._starter.start(name, self._roles[name])

    def update(self, states: Mapping[str, JobState], now: float) -> None:
        """Restarts services that have ended. Raises JobFailedError if the budget of one is spent.

        A service whose node is lost is placed again when the workers restart, because its address changes.
        """
        if "reference" in self._roles:
            self._end_condemned_reference(states)
        for name, restarts in self._restarts.items():
            state = states.get(name)
            if not isinstance(state, Ended):
                continue
            if not restarts.is_pending:
                restarts.record_end(now, state.status)
            if restarts.is_spent:
                raise JobFailedError(self._failure(name, state))
            if restarts.is_due(now):
                why = self._how_it_ended(name, state)
                self._restart_log.record("services", [name], why)
                terminal.print_message(f"{why}; started again: {name}")
                self.start_one(name)

    def _failure(self, name: str, state: Ended) -> str:
        how = self._how_it_ended(name, state)
        spent = self._restarts[name].spent_message("restarts.services")
        return how if state.status == REFUSED else f"{how}; {spent}"

    def _end_condemned_reference(self, states: Mapping[str, JobState]) -> None:
        for condemned in self._events.read():
            if is_alive(states.get("reference")):
                self._condemned_why = condemned.why
                self._executor.end(["reference"])

    def _how_it_ended(self, name: str, state: Ended) -> str:
        if name == "reference" and self._condemned_why:
            return f"{name} hung ({self._condemned_why})"
        return self._starter.how_it_ended(name, state)
