"""The workers of a run: watched, and begun again together from where the run is, in the same launch.

What follows when one has ended is decided in `workers.py`. Servers and services stay up meanwhile. Jobs whose
nodes are lost are given new places first: these are asked for until there are some, or for too long.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from contracts.records import Resumed, SaveWanted
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import Executor, Fate, Lost, Placed, Slot, Waiting
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.placing import PlacedRun
from pipelinerl.launcher.resume import StillAliveError
from pipelinerl.launcher.supervising.ends import (
    SERVICE_ROLES,
    WORKER_ROLES,
    JobFailedError,
    Restarts,
    is_alive,
)
from pipelinerl.launcher.supervising.events import RestartLog, StepNews
from pipelinerl.launcher.supervising.job_starter import JobStarter
from pipelinerl.launcher.supervising.workers import Liveness, Step, Workers
from pipelinerl.launcher.wants import Member, members_of
from pipelinerl.streams import Streams, StreamWriter

ASK_EVERY_S = 5.0  # where no place can be had
SAY_AFTER_S = 10.0  # that places are waited for
BUSY_S = 120.0  # for the connections of a machine that is gone to be noticed as broken
Phase = Literal["running", "ending", "placing", "resuming", "over"]


class WorkerJobs:
    """Tends the workers, and begins them again.

    resume: says where they go on, after all of them have ended; None where nothing is left to do. It raises
        StillAliveError where a stream is still held by one of them.
    start_service: starts a service that has lost its place, in its new one.
    events: the writer of `launcher_events`.
    """

    def __init__(
        self,
        placed: PlacedRun,
        starter: JobStarter,
        streams: Streams,
        events: StreamWriter,
        told: RestartLog,
        resume: Callable[[], Resumed | None],
        start_service: Callable[[str], None],
    ):
        members = [member for member in members_of(placed.config) if member.role != "server"]
        self._roles = {want.name: role for role, want in members}
        self.names = [name for name, role in self._roles.items() if role in WORKER_ROLES]
        self._services = [name for name, role in self._roles.items() if role in SERVICE_ROLES]
        self._executor = placed.executor
        self._starter = starter
        self._timeout_s = placed.config.world.heartbeat_timeout_s
        self._liveness = Liveness(placed.run_dir, self._timeout_s)
        self._news = StepNews(streams)
        self._events = events
        self._told = told
        self._resume = resume
        self._start_service = start_service
        self._relocation = Relocation(members, placed.executor)
        restarts = Restarts(placed.config.restarts.workers)
        self._policy = Workers(self.names, restarts, placed.executor.notices_within_s, self._timeout_s)
        self._hung: set[str] = set()
        self._phase: Phase = "running"
        self._busy_until = 0.0
        self._why = ""  # of the restart under way

    @property
    def are_over(self) -> bool:
        """Whether a restart has found that nothing is left to do."""
        return self._phase == "over"

    def start(self) -> None:
        """Starts them all in their places."""
        now = time.monotonic()
        for name in self.names:
            self._liveness.began(name, now)
            self._starter.start(name, self._roles[name])

    def tend(self, fates: Mapping[str, Fate], now: float) -> None:
        """Does what their fates ask for. Raises JobFailedError where the run cannot go on."""
        match self._phase:
            case "running":
                self._watch(fates, now)
            case "ending":
                self._wait_for_ends(fates, now)
            case "placing":
                self._wait_for_places(fates, now)
            case "resuming":
                self._go_on(now)

    # --- while they run -----------------------------------------------------------------------

    def _watch(self, fates: Mapping[str, Fate], now: float) -> None:
        self._end_silent(fates, now)
        watched = {name: fates[name] for name in self.names}
        watched |= {name: fates[name] for name in self._services if isinstance(fates[name], Lost)}
        knew = self._policy.cause
        self._news.read()
        step = self._policy.next_step(watched, now, self._news.made, self._hung, self._news.done)
        cause = self._policy.cause
        if cause and not knew:
            self._why = self._how_it_ended(cause, fates[cause])
        if all(isinstance(fate, Lost) for fate in fates.values()):
            step = Step.FAIL  # with what all of them were on, as the head of a cluster
        match step:
            case Step.FAIL:
                raise JobFailedError("; ".join(filter(None, [self._why, self._policy.why_not])))
            case Step.SAVE:
                self._events.append(SaveWanted())
                say(f"{self._policy.cause} has ended; the trainer saves its state")
            case Step.BEGIN:
                say(f"{self._why}; all workers begin again")
                self._executor.end([name for name in self.names if is_alive(fates[name])])
                self._phase = "ending"

    def _how_it_ended(self, name: str, fate: Fate) -> str:
        if name in self._hung:
            return f"{name} was silent for {self._timeout_s:g} s; {self._starter.last_words(name)}"
        return self._starter.how_it_ended(name, fate)

    def _end_silent(self, fates: Mapping[str, Fate], now: float) -> None:
        alive = [name for name in self.names if is_alive(fates[name]) and name not in self._hung]
        for name in self._liveness.silent(alive, now):
            say(f"{name} has been silent for {self._timeout_s:g} s and is ended; its log may have its stacks")
            self._hung.add(name)
            self._executor.end([name])

    # --- while they begin again ---------------------------------------------------------------

    def _wait_for_ends(self, fates: Mapping[str, Fate], now: float) -> None:
        if any(is_alive(fates[name]) for name in self.names):
            return
        self._relocation.begin(fates, now)
        self._phase = "placing"

    def _wait_for_places(self, fates: Mapping[str, Fate], now: float) -> None:
        """Begins them again once each has a place, which those have that were not lost."""
        slots = self._relocation.slots(fates, now)
        if slots is None:
            return
        self._starter.slots.update(slots)
        for name in self._services:
            if name in slots:
                self._start_service(name)
        self._news.begin_again()
        self._busy_until = now + BUSY_S
        self._phase = "resuming"

    def _go_on(self, now: float) -> None:
        """Begins them again, once what a lost machine may still hold of the streams is free."""
        try:
            resumed = self._resume()
        except StillAliveError:
            if now > self._busy_until:
                raise
            return
        if resumed is None:
            self._phase = "over"
            return
        self._told.record("workers", self.names, self._why)
        self._hung.clear()
        self._phase = "running"
        self.start()


class Relocation:
    """Has new places found for jobs whose nodes are lost.

    members: the jobs of the run that are no servers. Those of one group are placed together.
    """

    def __init__(self, members: Iterable[Member], executor: Executor):
        self._wants = [member.want for member in members]
        self._executor = executor
        self._lost: list[str] = []  # names, of which the places are asked for
        self._began = 0.0
        self._ask_at: float | None = None  # None once they are asked for
        self._needs = ""  # what was waited for last
        self._has_said_so = False

    def begin(self, fates: Mapping[str, Fate], now: float) -> None:
        """Gives up the places of every group of which one is lost."""
        groups = {want.group for want in self._wants if isinstance(fates[want.name], Lost)}
        self._lost = [want.name for want in self._wants if want.group in groups]
        self._executor.drop(self._lost)
        self._began = self._ask_at = now
        self._has_said_so = False

    def slots(self, fates: Mapping[str, Fate], now: float) -> dict[str, Slot] | None:
        """Returns the new places, of those jobs that had lost theirs; None while they are waited for.

        Raises JobFailedError where they are waited for longer than `executor.place_timeout_s`.
        """
        if not self._lost:
            return {}
        if self._ask_at is not None:
            self._ask(now)
            return None
        found = [fates[name] for name in self._lost]
        if all(isinstance(fate, Placed) for fate in found):
            return {name: fates[name].slot for name in self._lost}
        if any(isinstance(fate, Lost) for fate in found):
            self.begin(fates, self._began)
        self._needs = next((fate.needs for fate in found if isinstance(fate, Waiting)), self._needs)
        self._wait(now)
        return None

    def _ask(self, now: float) -> None:
        if now < self._ask_at:
            return
        try:
            self._executor.ask(want for want in self._wants if want.name in self._lost)
            self._ask_at = None
        except PlanError as error:
            self._needs = str(error)
            self._ask_at = now + ASK_EVERY_S
            self._wait(now)

    def _wait(self, now: float) -> None:
        waited_s = now - self._began
        if waited_s > self._executor.place_timeout_s:
            raise JobFailedError(
                f"no place for {', '.join(self._lost)} within executor.place_timeout_s="
                f"{self._executor.place_timeout_s:g} s: {self._needs}"
            )
        if waited_s > SAY_AFTER_S and not self._has_said_so:
            self._has_said_so = True
            say(f"{', '.join(self._lost)} wait for a place: {self._needs}")
