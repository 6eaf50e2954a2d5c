"""The completions that the run wants, and the volunteers that are given them. It knows no HTTP.

All of it runs in the server's event loop. `uploads` decides what becomes of the volunteers' work.
"""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from contracts.inference import SamplingParameters, TokenDelta
from extensions.volunteers.gateway.draw_keys import DrawKeys
from extensions.volunteers.gateway.presence import Presence
from extensions.volunteers.gateway.queue import CompletionQueue, Suits, Wanted
from extensions.volunteers.gateway.registry import NotAllowedError, Registry
from extensions.volunteers.gateway.tasks import OpenTask, Tasks
from extensions.volunteers.messages import Ask, Weights

log = logging.getLogger(__name__)

EXPIRY_EVERY_S = 0.5
BEHIND_S = 10.0  # after new weights, for which the ones before get tasks
GATHER_S = 0.02  # after the first completion, so that a task has several


class TaskError(Exception):
    """A request for a task, or an upload, that is refused: status and word for the volunteer, and why."""

    def __init__(self, status: int, word: str, why: str):
        super().__init__(why)
        self.status = status
        self.word = word


@dataclass(frozen=True)
class TaskRules:
    """behind: most versions behind the newest with which tasks are given, for a lease after new weights.

    most_members: returns the most completions of a task, by their `max_tokens`.
    """

    behind: int
    most_members: Callable[[int], int]


class Pool:
    """Completions that are wanted, and who makes them. clock: returns monotonic seconds."""

    def __init__(
        self, registry: Registry, lease_s: float, rules: TaskRules, clock: Callable[[], float] = monotonic
    ):
        self.registry = registry
        self.rules = rules
        self.tasks = Tasks(lease_s, clock)
        self.queue = CompletionQueue()
        self.presence = Presence(clock)
        self.run = ""
        self.weights: Weights | None = None  # the newest of this run
        self.versions: list[int] = []  # of this run, that can be audited
        self._clock = clock
        self._keys = DrawKeys()
        self._new_weights_at = 0.0
        self._changed = asyncio.Condition()
        self._waiting: dict[Wanted, asyncio.Event] = {}
        self._expiring: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._expiring = asyncio.create_task(self._expire())

    async def close(self) -> None:
        if self._expiring is not None:
            self._expiring.cancel()

    # --- the run's side ---------------------------------------------------------------------------

    async def completion(
        self, prompt: list[int], sampling: SamplingParameters
    ) -> AsyncGenerator[TokenDelta, None]:
        """Yields the completion once a volunteer has made it. Closing the generator gives it up."""
        key = sampling.draw_key or self._keys.take(prompt, sampling)
        wanted = Wanted(prompt, sampling, key, self.oldest)
        ready = self._waiting[wanted] = asyncio.Event()
        try:
            self.queue.put(wanted)
            await self.notify()
            await ready.wait()
            if isinstance(wanted.result, Exception):
                raise wanted.result
            yield wanted.result
        finally:
            self._give_up(wanted)

    def _give_up(self, wanted: Wanted) -> None:
        """Forgets a completion. If it was not made, its key is used again, unless it was refused."""
        wanted.given_up = True
        del self._waiting[wanted]
        self.queue.discard(wanted)
        is_made = isinstance(wanted.result, TokenDelta) and wanted.result.finish_reason != "abort"
        if not (is_made or wanted.refused or wanted.sampling.draw_key):
            self._keys.give_back(wanted.prompt, wanted.sampling, wanted.key)

    def settle(self, wanted: Wanted, result: TokenDelta | Exception) -> None:
        """Ends a completion, unless it has ended or nobody waits for it."""
        if wanted.is_open:
            wanted.result = result
            self._waiting[wanted].set()

    def abort(self) -> None:
        """Ends every completion with the finish reason `abort`."""
        for wanted in [*self._waiting]:
            self.settle(wanted, TokenDelta([], [], [], "abort"))

    async def begin_run(self, run: str) -> None:
        """Changes the run. Tasks of the last one end, because their weights are no longer served."""
        self.run = run
        self.weights = None
        self.versions = []
        for wanted in self._waiting:
            wanted.oldest = 0  # versions may begin anew
            wanted.version = None
        await self.put_back(self.tasks.every())

    async def serve(self, weights: Weights, versions: list[int]) -> None:
        """Changes the weights of new tasks. versions: all that can be audited."""
        self.weights = weights
        self.versions = versions
        self._new_weights_at = self._clock()
        await self.notify()

    # --- who is there -----------------------------------------------------------------------------

    @property
    def active(self) -> set[str]:
        """The addresses of the volunteers that get tasks, or have one."""
        return self.presence.active(self.tasks.volunteers)

    @property
    def oldest_allowed(self) -> int:
        """The oldest version that gets tasks. The one before counts only for a while after new weights."""
        if self.weights is None:
            return 0
        is_late = self._clock() - self._new_weights_at > BEHIND_S
        return max(min(self.versions), self.weights.version - (0 if is_late else self.rules.behind))

    @property
    def oldest(self) -> int:
        """The oldest version that may sample a completion that is wanted from now on."""
        if self.weights is None:
            return 0
        return max(self.oldest_allowed, self.presence.oldest(self.weights.version))

    # --- tasks ------------------------------------------------------------------------------------

    async def ask(self, asked: Ask, wait_s: float) -> OpenTask | None:
        """Returns a task for a volunteer, or None if there is none in time. Raises TaskError."""
        self._check(asked)
        self.presence.begin_asking(asked.volunteer, asked.version)
        is_there = False
        try:
            async with asyncio.timeout(wait_s):
                task = await self._next_task(asked)
            is_there = True
            return task
        except TimeoutError:
            is_there = True
            return None
        finally:
            self.presence.end_asking(asked.volunteer, is_there)

    async def _next_task(self, asked: Ask) -> OpenTask | None:
        """Waits for a task. Returns None if there are newer weights, which the volunteer can fetch now."""
        weights = self.weights
        while True:
            self._check(asked)
            if task := await self._held(asked):
                return task
            has_work = self.queue.has(self._suits(asked))
            if self.weights != weights or (not has_work and self.weights.version > asked.version):
                return None
            if has_work:
                await asyncio.sleep(GATHER_S)
                self._check(asked)
                if task := await self._held(asked) or self._grant(asked):
                    return task
            else:
                async with self._changed:
                    await self._changed.wait()

    def _check(self, asked: Ask) -> None:
        """Raises TaskError, or NotAllowedError, if the volunteer gets no task as it asked."""
        self.registry.allowed(asked.volunteer)
        if (pause_s := self.tasks.paused_s(asked.volunteer)) > 0:
            why = f"too many tasks were not delivered: the next one in {pause_s:.0f} s"
            raise TaskError(429, "paused", why)
        if asked.run != self.run:
            raise TaskError(409, "other_run", f"the run is {self.run or 'not there yet'}: read /v1/run again")
        if asked.version < self.oldest_allowed or asked.version not in self.versions:
            newest = f"; the newest is {self.weights.version}" if self.weights else ""
            raise TaskError(409, "update_first", f"version {asked.version} gets no tasks{newest}")

    def _suits(self, asked: Ask) -> Suits:
        """Returns whether a completion may be given to a volunteer.

        Who did not deliver it gets it again only if nobody else is there: it could hope for another draw.
        """
        versions = self.presence.versions(self.active - {asked.volunteer})
        of_others = {*versions.values()}

        def suits(wanted: Wanted) -> bool:
            if asked.version < wanted.oldest or asked.volunteer in wanted.refused:
                return False
            left = of_others
            if wanted.tried or wanted.refused:
                left = {versions[other] for other in versions.keys() - wanted.tried - wanted.refused}
            if wanted.version != asked.version and wanted.version in left:
                return False  # with another version it would be another draw
            return asked.volunteer not in wanted.tried or max(left, default=-1) < wanted.oldest

        return suits

    async def _held(self, asked: Ask) -> OpenTask | None:
        """Returns the volunteer's open task, which it has not uploaded: it may have lost it.

        If it has other weights now, the task goes back.
        """
        for task in self.tasks.of(asked.volunteer):
            if self.tasks.has_expired(task):
                await self.give_back(task, "expired")
            elif not task.uploaded and task.version == asked.version:
                return task
            elif not task.uploaded:  # it has other weights now, and cannot know the task
                for wanted in task.members:
                    wanted.tried.add(asked.volunteer)
                await self.put_back([task])
        return None

    def _grant(self, asked: Ask) -> OpenTask | None:
        suits = self._suits(asked)
        first = self.queue.first(suits)
        if first is None:
            return None
        most = min(asked.room, self.rules.most_members(first.sampling.max_tokens))
        members = self.queue.take(most, suits)
        for wanted in members:
            wanted.version = asked.version
        return self.tasks.grant(asked.volunteer, self.run, asked.version, members)

    # --- tasks that end ---------------------------------------------------------------------------

    async def give_back(self, task: OpenTask, kind: str) -> None:
        """Ends a task that was returned or has expired, which counts against its volunteer."""
        self.tasks.give_back(task)
        for wanted in task.members:
            wanted.tried.add(task.volunteer)
        await self.put_back([task])
        try:
            self.registry.note(kind, task.volunteer, {"completions": len(task.members)})
        except sqlite3.Error:
            log.exception("the ledger lacks that task %s was %s", task.name, kind)

    async def put_back(self, tasks: Iterable[OpenTask]) -> None:
        """Ends tasks, and queues what is still wanted of them."""
        for task in tasks:
            if task.is_over:
                continue
            task.is_over = True
            self.tasks.drop(task)
            for wanted in task.members:
                if wanted.is_open:
                    self.queue.put(wanted)
        await self.notify()

    async def notify(self) -> None:
        """Wakes every volunteer that waits for a task."""
        async with self._changed:
            self._changed.notify_all()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_EVERY_S)
            for task in self.tasks.every():
                try:
                    await self._look_at(task)
                except Exception:
                    log.exception("task %s of volunteer %s is looked at again", task.name, task.volunteer)
            await self.notify()  # what suits whom depends on the time, too

    async def _look_at(self, task: OpenTask) -> None:
        """Ends a task that has expired, or whose volunteer was put out."""
        if self.tasks.has_expired(task):
            log.info("task %s of volunteer %s has expired", task.name, task.volunteer)
            await self.give_back(task, "expired")
            return
        try:
            self.registry.allowed(task.volunteer)
        except NotAllowedError:
            self.presence.gone(task.volunteer)
            await self.put_back([task])
