"""The gateway's state: what is wanted, who makes it, and what becomes of an upload. It knows no HTTP.

All of it runs in the server's event loop; only the auditor uses a thread.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from contracts.errors import ContractError, ErrorCode
from contracts.inference import SamplingParameters, TokenDelta
from contracts.support.files import write_atomically
from extensions.volunteers.gateway import checks
from extensions.volunteers.gateway.audit import Auditor, Verdict
from extensions.volunteers.gateway.checks import PENALTIES, Refusal
from extensions.volunteers.gateway.ledger import sha256_of_ids
from extensions.volunteers.gateway.numerics import Numerics
from extensions.volunteers.gateway.presence import Presence
from extensions.volunteers.gateway.queue import CompletionQueue, Wanted
from extensions.volunteers.gateway.registry import Registry, Volunteer
from extensions.volunteers.gateway.tasks import OpenTask, Tasks
from extensions.volunteers.messages import Ask, Made, Upload

log = logging.getLogger(__name__)

EXPIRY_EVERY_S = 0.5
GATHER_S = 0.02  # after the first completion, so that a task has several
REMEMBERED_ANSWERS = 256
TIMED = 10_000  # uploads
AUDIT_TRIES = 3  # of a completion whose audit fails, before its request fails


class TaskError(Exception):
    """A request for a task, or an upload, that is refused: status and word for the volunteer, and why."""

    def __init__(self, status: int, word: str, why: str):
        super().__init__(why)
        self.status = status
        self.word = word


@dataclass(frozen=True)
class PoolOptions:
    """behind: most versions behind the newest with which tasks are given. refused: directory of evidence."""

    behind: int
    task_size: int
    most_uploads: int
    refused: Path


class Pool:
    """Completions that are wanted, and the volunteers that make them."""

    def __init__(
        self,
        registry: Registry,
        tasks: Tasks,
        allowed: Numerics,
        options: PoolOptions,
        clock: Callable[[], float] = monotonic,
    ):
        self.registry = registry
        self.tasks = tasks
        self.queue = CompletionQueue()
        self.presence = Presence(clock)
        self.auditor: Auditor | None = None  # set once the model is loaded
        self.options = options
        self.run = ""
        self.newest = 0
        self.versions: list[int] = []  # of this run, for which tasks are given
        self._allowed = allowed
        self._changed = asyncio.Condition()
        self._results: dict[Wanted, asyncio.Event] = {}
        self._failures: dict[Wanted, int] = {}  # failed audits
        self._uploads: OrderedDict[str, asyncio.Task[int]] = OrderedDict()  # by the SHA-256 of their bytes
        self._expiring: asyncio.Task[None] | None = None
        self.uploaded_bytes = 0
        self.answer_times: deque[float] = deque(maxlen=TIMED)  # seconds from an upload to its answer

    def start(self, auditor: Auditor) -> None:
        self.auditor = auditor
        self._expiring = asyncio.create_task(self._expire())

    async def close(self) -> None:
        if self._expiring is not None:
            self._expiring.cancel()
        if self.auditor is not None:
            await self.auditor.close()

    # --- the run's side ---------------------------------------------------------------------------

    async def completion(
        self, prompt: list[int], sampling: SamplingParameters, key: bytes
    ) -> AsyncIterator[TokenDelta]:
        """Yields the completion once a volunteer has made it. Closing the iterator gives it up."""
        wanted = Wanted(prompt, sampling, key)
        ready = self._results[wanted] = asyncio.Event()
        self.queue.put(wanted)
        await self._notify()
        try:
            await ready.wait()
            if isinstance(wanted.result, Exception):
                raise wanted.result
            yield wanted.result
        finally:
            wanted.given_up = True
            self._results.pop(wanted, None)
            self._failures.pop(wanted, None)

    def abort(self) -> None:
        """Ends every completion with the finish reason `abort`."""
        for wanted in [*self._results]:
            self._settle(wanted, TokenDelta([], [], [], "abort"))

    def _settle(self, wanted: Wanted, result: TokenDelta | Exception) -> None:
        if wanted.is_open:
            wanted.result = result
            self._results[wanted].set()

    async def begin_run(self, run: str) -> None:
        """Changes the run. Tasks of the last one end, because their weights are no longer served."""
        if run != self.run:
            self.run = run
            self.versions = []
            self._put_back(self.tasks.drop_all())
        await self._notify()

    async def serve(self, version: int, versions: list[int]) -> None:
        """Changes the weights of new tasks."""
        self.newest = version
        self.versions = versions
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # --- tasks ------------------------------------------------------------------------------------

    async def ask(self, asked: Ask, wait_s: float) -> OpenTask | None:
        """Returns a task for a volunteer, or None if there is none in time. Raises TaskError."""
        address = asked.volunteer
        self._check_pause(address)
        self.presence.seen(address, asked.version)
        if lost := self._lost(asked):
            return lost
        self.presence.begin_asking(address)
        is_there = False
        try:
            async with asyncio.timeout(wait_s):
                task = await self._next_task(asked)
            is_there = True
            return task
        except (TimeoutError, TaskError) as error:
            is_there = True
            if isinstance(error, TaskError):
                raise
            return None
        finally:
            self.presence.end_asking(address, is_there)

    async def _next_task(self, asked: Ask) -> OpenTask | None:
        """Waits for a task. Returns None if there are newer weights, which the volunteer can fetch now."""
        newest = self.newest
        while True:
            async with self._changed:
                while not (self._may_sample(asked.version) and self.queue):
                    if self.newest != newest:
                        return None
                    await self._changed.wait()
            await asyncio.sleep(GATHER_S)
            if task := self._grant(asked):
                return task

    def _check_pause(self, address: str) -> None:
        if (pause_s := self.tasks.paused_s(address)) > 0:
            why = f"too many tasks were not delivered: the next one in {pause_s:.0f} s"
            raise TaskError(429, "paused", why)

    def _lost(self, asked: Ask) -> OpenTask | None:
        """Returns a task that the volunteer has, and does not know: its answer or its process was lost."""
        known = {*asked.open}
        return next(
            (
                task
                for task in self.tasks.of(asked.volunteer)
                if task.name not in known and not task.uploaded and task.version == asked.version
            ),
            None,
        )

    def _may_sample(self, version: int) -> bool:
        """Returns False if the gateway's weights are older. Raises TaskError if they are too new."""
        if not self.versions or version > self.newest:
            return False
        if version < self.newest - self.options.behind or version not in self.versions:
            raise TaskError(409, "update_first", f"version {version} is too old; the newest is {self.newest}")
        return True

    def _grant(self, asked: Ask) -> OpenTask | None:
        if not self._may_sample(asked.version):
            return None
        members = self.queue.take(min(asked.room, self.options.task_size))
        if not members:
            return None
        return self.tasks.grant(asked.volunteer, self.run, asked.version, members)

    async def give_back(self, task: OpenTask, kind: str) -> float:
        """Ends a task that was returned or has expired. Returns the pause of its volunteer, in seconds."""
        pause_s = self.tasks.give_back(task)
        self.registry.note(kind, task.volunteer, {"task": task.name})
        self._put_back([task])
        await self._notify()
        return pause_s

    def _put_back(self, tasks: list[OpenTask]) -> None:
        for task in tasks:
            for wanted in task.members:
                if wanted.is_open:
                    self.queue.put(wanted)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_EVERY_S)
            for task in self.tasks.expired():
                log.info("task %s of volunteer %s has expired", task.name, task.volunteer)
                with contextlib.suppress(Exception):
                    await self.give_back(task, "expired")

    # --- uploads ----------------------------------------------------------------------------------

    def is_known(self, body: bytes) -> bool:
        """Returns True if these very bytes were uploaded before: they get the same answer."""
        return hashlib.sha256(body).hexdigest() in self._uploads

    async def upload(self, upload: Upload, body: bytes) -> int:
        """Audits an upload. Returns the number of accepted completions. Raises TaskError.

        body: the envelope, which is kept if it is refused.
        """
        began = monotonic()
        digest = hashlib.sha256(body).hexdigest()
        if digest not in self._uploads:
            task = self.open_task(upload.task, upload.volunteer)
            if self.auditor.waiting >= self.options.most_uploads:
                raise TaskError(503, "overloaded", "too many uploads wait for the audit: send it again later")
            self._uploads[digest] = asyncio.create_task(self._decide(task, upload, body))
            while len(self._uploads) > REMEMBERED_ANSWERS:
                self._uploads.popitem(last=False)
            self.uploaded_bytes += len(body)
        try:
            return await asyncio.shield(self._uploads[digest])
        finally:
            self.answer_times.append(monotonic() - began)

    async def _decide(self, task: OpenTask, upload: Upload, body: bytes) -> int:
        task.uploaded = True
        try:
            refusal = self.auditor.look(task, upload.members)
            verdict = Verdict(refusal) if refusal else await self._audited(task, upload.members)
        except BaseException:
            task.uploaded = False
            raise
        self.presence.seen(upload.volunteer)
        if verdict.is_stale or task.run != self.run:
            self.tasks.close(task)
            self._put_back([task])
            await self._notify()
            raise TaskError(410, "stale", f"the weights of version {task.version} are no longer served")
        volunteer = self.registry.get(upload.volunteer)
        refusal = verdict.refusal or self._near_misses(volunteer, verdict)
        if refusal:
            await self._refuse(task, refusal, body)
        return self._accept(task, upload.members, verdict)

    def open_task(self, name: str, volunteer: str) -> OpenTask:
        """Raises TaskError unless the task is this volunteer's and open."""
        task = self.tasks.find(name, volunteer)
        if task is None or task.uploaded:
            raise TaskError(410, "ticket", "this task is not yours, or no longer open")
        return task

    async def refuse_schema(self, name: str, volunteer: str, why: str, body: bytes) -> None:
        """Refuses an upload that is signed, and has another form. Raises TaskError."""
        await self._refuse(self.open_task(name, volunteer), Refusal("schema", why), body)

    async def _audited(self, task: OpenTask, made: list[Made]) -> Verdict:
        try:
            return await self.auditor.audit(task, made)
        except Exception as error:
            log.exception("task %s could not be audited", task.name)
            self.tasks.close(task)
            for wanted in task.members:
                tries = self._failures[wanted] = self._failures.get(wanted, 0) + 1
                if tries >= AUDIT_TRIES:
                    why = f"the completion could not be audited {tries} times: {type(error).__name__}"
                    self._settle(wanted, ContractError(ErrorCode.ENGINE_FAILED, why))
            self._put_back([task])
            await self._notify()
            raise TaskError(
                503, "audit_failed", "the gateway could not audit it; take another task"
            ) from error

    def _near_misses(self, volunteer: Volunteer, verdict: Verdict) -> Refusal | None:
        tokens = volunteer.tokens + verdict.tokens
        missed = volunteer.near_misses + verdict.near_misses
        return self.auditor.unless_off(checks.near_misses(tokens, missed, self._allowed))

    async def _refuse(self, task: OpenTask, refusal: Refusal, body: bytes) -> None:
        """Records a refusal, and keeps the upload as evidence. Raises TaskError."""
        digest = hashlib.sha256(body).hexdigest()
        write_atomically(self.options.refused / f"{task.name}.json", body, 0o600)
        self.tasks.close(task)
        entry = {"task": task.name, "check": refusal.check, "why": refusal.why, "upload": digest}
        penalty = PENALTIES[refusal.check]
        why = f"check {refusal.check} failed in task {task.name}: {refusal.why}"
        state = self.registry.refuse(task.volunteer, entry, penalty, why)
        log.warning("volunteer %s, now %s: %s", task.volunteer, state, why)
        if state == "slashed":
            self.presence.gone(task.volunteer)
            self._put_back(self._take_all_of(task.volunteer))
        self._put_back([task])
        await self._notify()
        raise TaskError(403 if state == "slashed" else 422, refusal.check, why)

    def _take_all_of(self, volunteer: str) -> list[OpenTask]:
        every = self.tasks.of(volunteer)
        for task in every:
            self.tasks.close(task)
        return every

    def _accept(self, task: OpenTask, made: list[Made], verdict: Verdict) -> int:
        self.tasks.close(task)
        members = [
            {
                "prompt": sha256_of_ids(wanted.prompt),
                "ids": sha256_of_ids(one.token_ids),
                "key": wanted.key.hex(),
            }
            for wanted, one in zip(task.members, made, strict=True)
        ]
        sampling = task.members[0].sampling
        entry = {
            "task": task.name,
            "run": task.run,
            "version": task.version,
            "temperature": str(sampling.temperature),
            "max_tokens": sampling.max_tokens,
            "members": members,
        }
        self.registry.accept(task.volunteer, entry, len(made), verdict.tokens, verdict.near_misses)
        for wanted, one, logprobs in zip(task.members, made, verdict.logprobs, strict=True):
            versions = [task.version] * len(one.token_ids)
            self._settle(wanted, TokenDelta(one.token_ids, logprobs, versions, one.finish_reason))
        return len(made)
