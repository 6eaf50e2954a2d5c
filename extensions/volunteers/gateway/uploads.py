"""What becomes of uploads: each is audited, and accepted or refused, once."""

import asyncio
import hashlib
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from contracts.errors import ContractError, ErrorCode
from contracts.inference import TokenDelta
from contracts.support.files import write_atomically
from extensions.volunteers.gateway import checks
from extensions.volunteers.gateway.audit import Auditor, Verdict
from extensions.volunteers.gateway.checks import Refusal
from extensions.volunteers.gateway.ledger import sha256_of_ids
from extensions.volunteers.gateway.numerics import Numerics
from extensions.volunteers.gateway.pool import Pool, TaskError
from extensions.volunteers.gateway.registry import NotAllowedError, Volunteer
from extensions.volunteers.gateway.tasks import OpenTask
from extensions.volunteers.messages import Made, Upload

log = logging.getLogger(__name__)

REMEMBERED = 4096  # answers to uploads
TIMED = 10_000  # uploads
MOST_FAILURES = 3  # of a completion's audits, before its request fails

ENVELOPE_BYTES = 4096  # of a message without completions
MEMBER_BYTES = 1024  # of a completion without its tokens, and the proof of a first chunk
TOKEN_BYTES = 64  # of a token, its log-probability and proof, in base64 of JSON: 50 are usual


def most_upload_bytes(members: int, max_tokens: int) -> int:
    return ENVELOPE_BYTES + members * (MEMBER_BYTES + max_tokens * TOKEN_BYTES)


@dataclass(frozen=True)
class Answer:
    """What an upload was answered. digest: of its bytes. status: 200 if it was accepted."""

    digest: str
    status: int
    word: str
    why: str
    accepted: int = 0


class Uploads:
    """Decides about uploads. refused: directory of evidence. most_waiting: uploads that wait."""

    def __init__(self, pool: Pool, auditor: Auditor, allowed: Numerics, refused: Path, most_waiting: int):
        self.auditor = auditor
        self.bytes = 0
        self.answer_times: deque[float] = deque(maxlen=TIMED)  # seconds from an upload to its answer
        self._pool = pool
        self._allowed = allowed
        self._refused = refused
        self._most_waiting = most_waiting
        self._answers: OrderedDict[str, Answer] = OrderedDict()  # by task
        self._deciding: dict[str, asyncio.Task[Answer]] = {}  # by task

    async def answer(self, name: str, volunteer: str, body: bytes, upload: Upload | str) -> int:
        """Audits an upload. Returns the number of accepted completions. Raises TaskError.

        body: the envelope. upload: its message, or why it is none.
        """
        began = monotonic()
        digest = hashlib.sha256(body).hexdigest()
        if name not in self._deciding:
            task = self.open_task(name, volunteer)
            if self.auditor.waiting >= self._most_waiting:
                raise TaskError(503, "overloaded", "too many uploads wait: send it again later")
            task.uploaded = True  # before anything is awaited
            self.bytes += len(body)
            self._deciding[name] = asyncio.create_task(self._decide(task, digest, body, upload))
        answer = await asyncio.shield(self._deciding[name])
        self.answer_times.append(monotonic() - began)
        return _accepted_by(answer, digest)

    def again(self, name: str, body: bytes) -> int | None:
        """Returns the answer to an upload that was decided before; None if the task was not uploaded yet.

        Raises TaskError if it was refused, or had other bytes.
        """
        known = self._answers.get(name)
        return None if known is None else _accepted_by(known, hashlib.sha256(body).hexdigest())

    def open_task(self, name: str, volunteer: str) -> OpenTask:
        """Raises TaskError unless the task is this volunteer's, and open."""
        task = self._pool.tasks.find(name, volunteer)
        if task is None or task.uploaded:
            raise TaskError(410, "ticket", "this task is not yours, or no longer open")
        return task

    def most_bytes(self, name: str) -> int:
        """Returns the largest upload of a task, in bytes. It is 0 if there was no such task."""
        size = self._pool.tasks.size(name)
        return most_upload_bytes(*size) if size else 0

    async def _decide(self, task: OpenTask, digest: str, body: bytes, upload: Upload | str) -> Answer:
        """Returns the answer. Whatever happens, the task ends, and what is not accepted is queued again."""
        try:
            accepted = await self._accepted(task, body, upload)
            answer = Answer(digest, 200, "", "", accepted)
        except TaskError as error:
            answer = Answer(digest, error.status, error.word, str(error))
        except NotAllowedError as error:
            answer = Answer(digest, 403, "not_allowed", str(error))
        except Exception:
            log.exception("task %s could not be audited", public_name(task.name))
            self._count_failures(task)
            why = "the gateway could not audit it: ask for another task"
            answer = Answer(digest, 503, "audit_failed", why)
        finally:
            await self._pool.put_back([task])
            del self._deciding[task.name]
        self._answers[task.name] = answer
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return answer

    async def _accepted(self, task: OpenTask, body: bytes, upload: Upload | str) -> int:
        if isinstance(upload, str):
            raise self._refusal(task, Refusal("schema", upload, "strike"), body)
        refusal = self.auditor.look(task, upload.members)
        verdict = Verdict(refusal) if refusal else await self.auditor.audit(task, upload.members)
        if task.is_over or verdict.is_stale:
            for wanted in task.members:
                wanted.tried.add(task.volunteer)  # it could hope for another draw
            why = f"the weights of version {task.version} are no longer served, or the volunteer was put out"
            raise TaskError(410, "stale", why)
        self._pool.tasks.close(task)
        volunteer = self._pool.registry.allowed(task.volunteer)
        if refusal := verdict.refusal or self._near_misses(volunteer, verdict):
            raise self._refusal(task, refusal, body)
        self._accept(task, upload.members, verdict)
        return len(upload.members)

    def _count_failures(self, task: OpenTask) -> None:
        for wanted in task.members:
            wanted.failures += 1
            if wanted.failures >= MOST_FAILURES:
                why = f"the completion could not be audited {wanted.failures} times; see the gateway's log"
                self._pool.settle(wanted, ContractError(ErrorCode.ENGINE_FAILED, why))

    def _near_misses(self, volunteer: Volunteer, verdict: Verdict) -> Refusal | None:
        tokens = volunteer.tokens + verdict.tokens
        missed = volunteer.near_misses + verdict.near_misses
        return self.auditor.unless_off(checks.near_misses(tokens, missed, self._allowed))

    def _refusal(self, task: OpenTask, refusal: Refusal, body: bytes) -> TaskError:
        """Records a refusal, and keeps the upload as evidence. Returns the error for the volunteer."""
        was_refused = any(wanted.refused for wanted in task.members)
        for wanted in task.members:
            wanted.refused.add(task.volunteer)
        digest = hashlib.sha256(body).hexdigest()
        entry = {"task": public_name(task.name), "check": refusal.check, "why": refusal.why, "upload": digest}
        why = f"check {refusal.check} failed in task {public_name(task.name)}: {refusal.why}"
        # If others failed at the same completion, its numbers may lie at a border for everybody.
        is_excused = was_refused and refusal.penalty == "strike" and refusal.check in checks.OF_NUMBERS
        penalty = "none" if self.auditor.observes or is_excused else refusal.penalty
        state = self._pool.registry.refuse(task.volunteer, entry, penalty, why)
        log.warning("volunteer %s, now %s: %s", task.volunteer, state, why)
        try:
            write_atomically(self._refused / f"{public_name(task.name)}.json", body, 0o600)
        except OSError:
            log.exception("the refused upload of task %s is not kept", public_name(task.name))
        if state == "slashed":
            self._pool.presence.gone(task.volunteer)
        return TaskError(403 if state == "slashed" else 422, refusal.check, why)

    def _accept(self, task: OpenTask, made: list[Made], verdict: Verdict) -> None:
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
            "task": public_name(task.name),
            "run": task.run,
            "version": task.version,
            "temperature": str(sampling.temperature),
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": list(sampling.stop_token_ids),
            "members": members,
        }
        self._pool.registry.accept(task.volunteer, entry, len(made), verdict.tokens, verdict.near_misses)
        for wanted, one, logprobs in zip(task.members, made, verdict.logprobs, strict=True):
            versions = [task.version] * len(one.token_ids)
            self._pool.settle(wanted, TokenDelta(one.token_ids, logprobs, versions, one.finish_reason))


def _accepted_by(answer: Answer, digest: str) -> int:
    """Returns the number of accepted completions. digest: of the upload. Raises TaskError."""
    if answer.digest != digest:
        raise TaskError(410, "ticket", "this task was uploaded before, with other bytes")
    if answer.status != 200:
        raise TaskError(answer.status, answer.word, answer.why)
    return answer.accepted


def public_name(task: str) -> str:
    """Returns the name of a task in ledger, log and directory: it is no ticket, as the task's own name is."""
    return hashlib.sha256(task.encode()).hexdigest()[:32]
