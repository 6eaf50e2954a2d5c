"""The inference servers of a run: their number, their restarts, and the records of who joins and leaves.

The supervisor calls `Servers.update` a few times a second. Trainer and actor read the server list from
ServerJoined and ServerLeft in `launcher_events`.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from contracts.records import ServerCondemned, ServerJoined, ServerLeft, WeightsPublished
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import (
    Draining,
    Ended,
    Executor,
    JobState,
    Lost,
    Placed,
    Placement,
    ResourceRequest,
    Waiting,
)
from pipelinerl.launcher.supervising.events import EventReader
from pipelinerl.launcher.supervising.failures import Restarts, in_words, is_alive
from pipelinerl.launcher.terminal import print_message
from pipelinerl.streams import Streams, StreamWriter

BEFORE_NODE_S = 5.0  # time between the end of a server and the end of its node
FINISH_S = 30.0  # time for the requests of a server that leaves
REPORT_WAIT_AFTER_S = 10.0  # without a placement
REQUEST_EVERY_S = 5.0  # while the executor refuses a placement


@dataclass(frozen=True)
class ServerJobContext:
    """Dependencies that all server jobs share."""

    executor: Executor
    start: Callable[[str, Placement], tuple[str, str]]  # starts a server by name; returns its URL and engine
    events: StreamWriter  # of `launcher_events`
    max_restarts: int  # of one server within ten minutes
    count_restart: Callable[[], None]
    last_words: Callable[[str, int], str]  # log and last error, by the server's name and exit status
    joinings: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # numbers of server instances


class Servers:
    """The jobs of all servers. longest_wait_s: longest wait of a server for its placement."""

    def __init__(
        self,
        requests: Iterable[ResourceRequest],
        context: ServerJobContext,
        streams: Streams,
        longest_wait_s: float,
    ):
        self._context = context
        now = time.monotonic()
        self._jobs = {request.name: ServerJob(request, context, waiting_since=now) for request in requests}
        self._events = EventReader(streams, "trainer_events", WeightsPublished, ServerCondemned)
        self._longest_wait_s = longest_wait_s
        self.refusal: str | None = None  # the trainer's reason for the last condemned server
        self.ended_last = next(iter(self._jobs))  # name of a server

    def update(self, states: Mapping[str, JobState], now: float) -> None:
        """Handles the trainer's events, and the state of each server."""
        self._read_trainer_events()
        for name, job in self._jobs.items():
            state = states.get(name)
            if isinstance(state, Ended | Lost):
                self.ended_last = name
            job.update(state, now)

    def join_again(self) -> None:
        """Records all servers again, because restarted workers read records from the restart on."""
        for job in self._jobs.values():
            job.join_again()

    def scale(self, requests: Sequence[ResourceRequest], states: Mapping[str, JobState], now: float) -> None:
        """Starts missing servers, or stops surplus ones, first those that do not serve."""
        kept = sorted(self._jobs, key=lambda name: not self._jobs[name].url)[: len(requests)]
        for name in self._jobs.keys() - kept:
            self._jobs[name].stop(states.get(name), now)
        for name in kept:
            self._jobs[name].keep(states.get(name), now)
        for request in requests:
            if len(kept) < len(requests) and request.name not in self._jobs:
                self._jobs[request.name] = ServerJob(request, self._context)
                kept.append(request.name)
                self._jobs[request.name].request(now)

    def num_serving(self, states: Mapping[str, JobState]) -> int:
        return sum(bool(job.url) and is_alive(states.get(name)) for name, job in self._jobs.items())

    def can_serve(self, states: Mapping[str, JobState], now: float) -> bool:
        """Returns True if a server is alive, or may still be started."""
        jobs = self._jobs.items()
        return any(job.can_serve(states.get(name), now, self._longest_wait_s) for name, job in jobs)

    def _read_trainer_events(self) -> None:
        by_joining = {job.joining: job for job in self._jobs.values() if job.url}
        for record in self._events.read():
            match record:
                case WeightsPublished(joinings=joinings):
                    for joining in by_joining.keys() & set(joinings):
                        by_joining[joining].has_served = True
                case ServerCondemned(joining=joining) if joining in by_joining:
                    by_joining[joining].condemned = record
                    self.refusal = record.why


class ServerJob:
    """Places, starts and restarts one server, and records when it joins and leaves."""

    def __init__(
        self, request: ResourceRequest, context: ServerJobContext, waiting_since: float | None = None
    ):
        self._request = request
        self._context = context
        self._restarts = Restarts(context.max_restarts)
        self._node = ""
        self._engine = ""
        self.url: str | None = None  # None if there is no process, or if it has left the run
        self.joining = 0  # number of the server instance
        self.has_served = False  # whether that instance has served published weights
        self.condemned: ServerCondemned | None = None
        self._waiting_since = waiting_since  # time of the request for a placement
        self._has_reported_wait = False
        self._is_end_expected = False
        self._end_at: float | None = None  # time at which a server that has left is ended

    @property
    def name(self) -> str:
        return self._request.name

    def update(self, state: JobState | None, now: float) -> None:
        """Handles the job's state. Called a few times a second."""
        match state:
            case None:
                if self._restarts.is_due(now):
                    self.request(now)
            case Waiting() if self._waiting_since is not None:
                if now - self._waiting_since > REPORT_WAIT_AFTER_S:
                    self._report_wait(state.needs)
            case Placed():
                self._start(state.placement)
            case Draining() if self.url:
                self._drain(state, now)
            case Ended() | Lost():
                self._handle_end(state, now)
        if self.condemned and self.url and is_alive(state):
            self._leave("condemned")
            self._context.executor.end([self.name])
        if self._end_at and now >= self._end_at and is_alive(state):
            self._end_at = None
            self._context.executor.end([self.name])

    def request(self, now: float) -> None:
        """Requests a placement. If the executor refuses, requests it again later: nodes may be added."""
        if self._waiting_since is None:
            self._waiting_since = now
        try:
            self._context.executor.request([self._request])
        except PlanError as error:
            self._restarts.postpone(now + REQUEST_EVERY_S)
            self._report_wait(str(error))

    def stop(self, state: JobState | None, now: float) -> None:
        """Ends the server once its requests have had time to finish, without a restart."""
        self._restarts.stop()
        if self.url:
            self._leave("asked")
            self._is_end_expected = True
            self._end_at = now + FINISH_S
        elif isinstance(state, Waiting | Placed):
            self._context.executor.release([self.name])

    def keep(self, state: JobState | None, now: float) -> None:
        """Starts a stopped server again. If it has not ended yet, ends it now, and it restarts."""
        if not self._restarts.is_spent:
            return
        self._restarts = Restarts(self._context.max_restarts)
        if self._end_at:
            self._end_at = now
        elif state is None:
            self._waiting_since = None
            self._has_reported_wait = False
            self.request(now)

    def join_again(self) -> None:
        if self.url:
            self._join()

    def can_serve(self, state: JobState | None, now: float, longest_wait_s: float) -> bool:
        """Returns True if the server is alive, or may still be started."""
        if is_alive(state) and self.url:
            return True
        if self._waiting_since is not None and now - self._waiting_since > longest_wait_s:
            return False
        return not self._restarts.is_spent and (state is not None or self._restarts.is_pending)

    def _report_wait(self, needs: str) -> None:
        if not self._has_reported_wait:
            self._has_reported_wait = True
            print_message(f"{self.name} waits for a place: {needs}")

    def _start(self, placement: Placement) -> None:
        self.url, self._engine = self._context.start(self.name, placement)
        self._node = placement.node
        self._waiting_since = None
        self._has_reported_wait = False
        self._end_at = None
        self._join()

    def _join(self) -> None:
        self.joining = next(self._context.joinings)
        server = {"number": self.joining, "name": self.name, "url": self.url}
        self._context.events.append(ServerJoined(**server, node=self._node, engine=self._engine))

    def _drain(self, state: Draining, now: float) -> None:
        self._leave("draining")
        self._is_end_expected = True
        self._end_at = now + min(FINISH_S, state.deadline - BEFORE_NODE_S - time.time())
        print_message(f"{self.name} leaves: its node {state.placement.node} is about to end")

    def _handle_end(self, state: Ended | Lost, now: float) -> None:
        if self.url:
            self._leave("ended" if isinstance(state, Ended) else "lost")
        self._context.executor.release([self.name])
        self._end_at = None
        if self.condemned and not self.condemned.replaceable:
            self._restarts.stop()
        if not self._restarts.is_spent:
            status = state.status if isinstance(state, Ended) else None
            failed_weight = 1 if self.has_served else 2
            self._restarts.record_end(now, status, 0 if self._is_end_expected else failed_weight)
        if self._restarts.is_pending:
            self._context.count_restart()
        then = "another is started" if self._restarts.is_pending else "it is not started again"
        print_message(f"{self.name} {self._how_it_ended(state)}; {then}")
        self.has_served = False
        self.condemned = None
        self._is_end_expected = False

    def _how_it_ended(self, state: Ended | Lost) -> str:
        if self._is_end_expected:
            return "has ended, as it was to"
        if isinstance(state, Lost):
            return f"is lost: {state.why}"
        how = f"was ended: {self.condemned.why}" if self.condemned else in_words(state.status)
        return f"{how}; {self._context.last_words(self.name, state.status)}"

    def _leave(self, why: str) -> None:
        self._context.events.append(ServerLeft(name=self.name, url=self.url, why=why))
        self.url = None
