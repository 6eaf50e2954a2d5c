"""The jobs of the workers: monitored, and restarted together from the newest checkpoint.

`worker_policy.py` decides when. Servers and services stay up meanwhile. Jobs whose nodes are lost are placed
again first.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from contracts.records import Resumed, SaveWanted
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import Executor, JobState, Lost, Placed, Placement, Waiting
from pipelinerl.launcher.jobs import PlacedRun
from pipelinerl.launcher.resource_requests import JobSpec, job_specs
from pipelinerl.launcher.resume import StillAliveError
from pipelinerl.launcher.supervising.events import RestartLog, TrainingProgress
from pipelinerl.launcher.supervising.failures import (
    SERVICE_ROLES,
    WORKER_ROLES,
    JobFailedError,
    Restarts,
    is_alive,
)
from pipelinerl.launcher.supervising.job_starter import JobStarter
from pipelinerl.launcher.supervising.worker_policy import Liveness, WorkerAction, WorkerPolicy
from pipelinerl.launcher.terminal import print_message
from pipelinerl.streams import Streams, StreamWriter

REQUEST_EVERY_S = 5.0  # while the executor refuses placements
REPORT_WAIT_AFTER_S = 10.0  # without placements
BUSY_S = 120.0  # time until the broken connections of a lost machine are noticed
Phase = Literal["running", "ending", "placing", "resuming", "over"]


class WorkerJobs:
    """Starts, monitors and restarts the workers.

    resume: records how the workers resume, after all of them have ended; returns None if the run has ended.
        Raises StillAliveError if a stream is still open for writing.
    start_service: starts a service whose node was lost, in its new placement.
    events: the writer of `launcher_events`.
    """

    def __init__(
        self,
        placed: PlacedRun,
        starter: JobStarter,
        streams: Streams,
        events: StreamWriter,
        restart_log: RestartLog,
        resume: Callable[[], Resumed | None],
        start_service: Callable[[str], None],
    ):
        specs = [spec for spec in job_specs(placed.config) if spec.role != "server"]
        self._roles = {request.name: role for role, request in specs}
        self.names = [name for name, role in self._roles.items() if role in WORKER_ROLES]
        self._services = [name for name, role in self._roles.items() if role in SERVICE_ROLES]
        self._executor = placed.executor
        self._starter = starter
        self._timeout_s = placed.config.world.heartbeat_timeout_s
        self._liveness = Liveness(placed.run_dir, self._timeout_s)
        self._progress = TrainingProgress(streams)
        self._events = events
        self._restart_log = restart_log
        self._resume = resume
        self._start_service = start_service
        self._relocation = Relocation(specs, placed.executor)
        restarts = Restarts(placed.config.restarts.workers)
        self._policy = WorkerPolicy(self.names, restarts, placed.executor.notices_within_s, self._timeout_s)
        self._hung: set[str] = set()
        self._phase: Phase = "running"
        self._resume_until = 0.0
        self._why = ""  # reason of the current restart

    @property
    def are_done(self) -> bool:
        """Whether a restart found that the run has ended."""
        return self._phase == "over"

    def start(self) -> None:
        now = time.monotonic()
        for name in self.names:
            self._liveness.started(name, now)
            self._starter.start(name, self._roles[name])

    def update(self, states: Mapping[str, JobState], now: float) -> None:
        """Does the next action on the workers. Raises JobFailedError if the run cannot continue."""
        match self._phase:
            case "running":
                self._monitor(states, now)
            case "ending":
                self._wait_for_ends(states, now)
            case "placing":
                self._wait_for_placements(states, now)
            case "resuming":
                self._try_to_resume(now)

    def _monitor(self, states: Mapping[str, JobState], now: float) -> None:
        self._end_silent(states, now)
        relevant = {name: states[name] for name in self.names}
        relevant |= {name: states[name] for name in self._services if isinstance(states[name], Lost)}
        known_cause = self._policy.cause
        self._progress.read()
        progress = self._progress
        action = self._policy.next_action(relevant, now, progress.version, self._hung, progress.done)
        cause = self._policy.cause
        if cause and not known_cause:
            self._why = self._how_it_ended(cause, states[cause])
        if all(isinstance(state, Lost) for state in states.values()):
            action = WorkerAction.FAIL  # the cluster itself is lost
        match action:
            case WorkerAction.FAIL:
                raise JobFailedError("; ".join(filter(None, [self._why, self._policy.why_not])))
            case WorkerAction.SAVE:
                self._events.append(SaveWanted())
                print_message(f"{self._policy.cause} has ended; the trainer saves its state")
            case WorkerAction.RESTART:
                print_message(f"{self._why}; all workers begin again")
                self._executor.end([name for name in self.names if is_alive(states[name])])
                self._phase = "ending"

    def _how_it_ended(self, name: str, state: JobState) -> str:
        if name in self._hung:
            return f"{name} was silent for {self._timeout_s:g} s; {self._starter.last_words(name)}"
        return self._starter.how_it_ended(name, state)

    def _end_silent(self, states: Mapping[str, JobState], now: float) -> None:
        alive = [name for name in self.names if is_alive(states[name]) and name not in self._hung]
        for name in self._liveness.silent(alive, now):
            print_message(
                f"{name} has been silent for {self._timeout_s:g} s and is ended; its log may have its stacks"
            )
            self._hung.add(name)
            self._executor.end([name])

    def _wait_for_ends(self, states: Mapping[str, JobState], now: float) -> None:
        if any(is_alive(states[name]) for name in self.names):
            return
        self._relocation.begin(states, now)
        self._phase = "placing"

    def _wait_for_placements(self, states: Mapping[str, JobState], now: float) -> None:
        placements = self._relocation.placements(states, now)
        if placements is None:
            return
        self._starter.placements.update(placements)
        for name in self._services:
            if name in placements:
                self._start_service(name)
        self._progress.reset()
        self._resume_until = now + BUSY_S
        self._phase = "resuming"

    def _try_to_resume(self, now: float) -> None:
        """Restarts the workers, once their streams are no longer open on a lost machine."""
        try:
            resumed = self._resume()
        except StillAliveError:
            if now > self._resume_until:
                raise
            return
        if resumed is None:
            self._phase = "over"
            return
        self._restart_log.record("workers", self.names, self._why)
        self._hung.clear()
        self._phase = "running"
        self.start()


class Relocation:
    """Places jobs again whose nodes are lost. specs: of all jobs except servers."""

    def __init__(self, specs: Iterable[JobSpec], executor: Executor):
        self._requests = [spec.request for spec in specs]
        self._executor = executor
        self._lost: list[str] = []  # jobs that are placed again
        self._began = 0.0
        self._request_at: float | None = None  # None after the request
        self._needs = ""  # missing resources, as last reported
        self._has_reported_wait = False

    def begin(self, states: Mapping[str, JobState], now: float) -> None:
        """Releases every group that has a lost job."""
        groups = {request.group for request in self._requests if isinstance(states[request.name], Lost)}
        self._lost = [request.name for request in self._requests if request.group in groups]
        self._executor.release(self._lost)
        self._began = self._request_at = now
        self._has_reported_wait = False

    def placements(self, states: Mapping[str, JobState], now: float) -> dict[str, Placement] | None:
        """Returns the released jobs' placements, or None until all are placed. Raises JobFailedError."""
        if not self._lost:
            return {}
        if self._request_at is not None:
            self._request(now)
            return None
        found = [states[name] for name in self._lost]
        if all(isinstance(state, Placed) for state in found):
            return {name: states[name].placement for name in self._lost}
        if any(isinstance(state, Lost) for state in found):
            self.begin(states, self._began)
        self._needs = next((state.needs for state in found if isinstance(state, Waiting)), self._needs)
        self._check_wait(now)
        return None

    def _request(self, now: float) -> None:
        if now < self._request_at:
            return
        try:
            self._executor.request(request for request in self._requests if request.name in self._lost)
            self._request_at = None
        except PlanError as error:
            self._needs = str(error)
            self._request_at = now + REQUEST_EVERY_S
            self._check_wait(now)

    def _check_wait(self, now: float) -> None:
        waited_s = now - self._began
        if waited_s > self._executor.place_timeout_s:
            raise JobFailedError(
                f"no place for {', '.join(self._lost)} within executor.place_timeout_s="
                f"{self._executor.place_timeout_s:g} s: {self._needs}"
            )
        if waited_s > REPORT_WAIT_AFTER_S and not self._has_reported_wait:
            self._has_reported_wait = True
            print_message(f"{', '.join(self._lost)} wait for a place: {self._needs}")
