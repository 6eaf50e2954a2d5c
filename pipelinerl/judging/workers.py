"""The pool of judging's workers, used by the service.

Each worker gives one verdict, because evaluated text can change its process, such that it accepts every later
text. A fork costs 10 to 15 ms of CPU time with sympy and reasoning-gym imported. Verifiers that evaluate no
text may reuse a worker (`Setup.reused`). A hostile text can still decide its own verdict.

Libraries' process pools unpickle results, so a hostile text could execute code in the service.
"""

import asyncio
import logging
import signal
from contextlib import suppress
from typing import TypeGuard

import msgspec

from pipelinerl.judging.isolation import clean_environment
from pipelinerl.judging.template import Template, TemplateError, Worker, WorkerLostError
from pipelinerl.judging.wire import Judgement, undecided
from pipelinerl.judging.worker_messages import (
    Asked,
    Ended,
    Failed,
    Judged,
    Setup,
    checked,
    names_in,
    printable,
    without_names,
)

TRIES = 3  # workers for a verdict, if they are lost
MOST_NAMES = 1000  # different names of metrics in all judgements
MOST_TEXTS = 1000  # texts that a reused worker judges before it is replaced, against leaks
KILLS = 2  # workers killed by the kernel before the text is taken as the cause

log = logging.getLogger(__name__)

__all__ = ["Setup", "TemplateError", "VerifierError", "WorkerLostError", "Workers"]


class VerifierError(Exception):
    """The verifier raised the exception in the message."""


class Workers:
    """A pool of workers.

    setup: the template's setup.
    workers: the number of processes that judge at the same time; further questions wait.
    verdict_s: the longest wall time of a verdict from when its worker has the text; may be changed later.

    restarts: the number of restarts of the template.
    """

    def __init__(self, setup: Setup, workers: int, verdict_s: float):
        self._setup = setup
        self.verdict_s = verdict_s
        self._environment = clean_environment({})
        self._free = asyncio.Semaphore(workers)
        self._template: Template | None = None
        self._idle: list[Worker] = []
        self._starting = asyncio.Lock()
        self._decode = msgspec.msgpack.Decoder(Judged | Failed).decode
        self._names: set[str] = set()
        self.restarts = 0

    async def start(self) -> None:
        """Starts the template, which imports the verifiers. Raises TemplateError with the reason."""
        await self._running()

    async def __aenter__(self) -> "Workers":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._template:
            await self._template.close()

    async def judged(self, verifier: str, task: bytes, text: str) -> Judgement:
        """Returns the judgement, or `undecided:<why>` if the text exceeded a limit.

        Raises VerifierError, WorkerLostError, and TemplateError if the template cannot be restarted.
        """
        question = msgspec.msgpack.encode(Asked(verifier, task, text))
        async with self._free:
            return await self._judged(question, verifier in self._setup.reused)

    async def _judged(self, question: bytes, is_reused: bool) -> Judgement:
        """Returns the judgement of an idle worker, or of a new one if the idle one fails.

        Only a new worker's failure is certainly caused by this text.
        """
        while is_reused and self._idle:
            worker = self._idle.pop()
            if worker.is_lost:
                continue
            with suppress(WorkerLostError, VerifierError):
                answered = await self._asked(worker, question, is_reused)
                if is_decided(answered) or answered == undecided("time"):
                    return answered
            break
        return await self._tried(question, is_reused)

    async def _tried(self, question: bytes, is_reused: bool) -> Judgement:
        kills = 0
        for tries in range(1, TRIES + 1):
            try:
                worker = await (await self._running()).worker()
                answered = await self._asked(worker, question, is_reused)
            except WorkerLostError:
                if tries == TRIES:
                    raise
                continue
            if not isinstance(answered, Ended):
                return answered
            kills += answered.code == -signal.SIGKILL
            why = self._why(answered)
            if why != "memory" or kills == KILLS:
                return undecided(why)
        raise WorkerLostError("workers are killed, or end, before they answer")

    async def _asked(self, worker: Worker, question: bytes, is_reused: bool) -> Judgement | Ended:
        """Returns the judgement, or the end of a worker that gave none."""
        kept = False
        try:
            async with asyncio.timeout(self.verdict_s):
                frame = await worker.ask(question)
            judgement = None if frame is None else self._read(frame)
            kept = is_reused and is_decided(judgement) and worker.asked < MOST_TEXTS
        except TimeoutError:
            judgement = undecided("time")
        finally:
            if kept:
                self._idle.append(worker)
            else:
                worker.end()
        return judgement or await worker.ended()

    def _read(self, frame: bytes) -> Judgement:
        """Returns the judgement in a worker's frame, which the judged text may have forged."""
        try:
            answer = self._decode(frame)
            if isinstance(answer, Judged):
                return self._with_few_names(checked(answer.judgement))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            log.warning("a judgement is refused, and undecided:output: %s", printable(str(error)))
            return undecided("output")
        if answer.why == "error":
            raise VerifierError(printable(answer.words))
        return undecided(answer.why if answer.why in ("memory", "processes") else "output")

    def _with_few_names(self, judgement: Judgement) -> Judgement:
        """Returns the judgement, without its names once all judgements have too many different ones.

        The names become names of metrics, of which texts that forge judgements could invent any number.
        """
        names = self._names | names_in(judgement)
        if len(names) > MOST_NAMES:
            return without_names(judgement)
        self._names = names
        return judgement

    def _why(self, ended: Ended) -> str:
        """Returns the limit that a worker exceeded that ended without an answer."""
        limit_s = self._setup.limits.cpu_s
        if ended.code == -signal.SIGXCPU or (limit_s is not None and ended.cpu_s > limit_s):
            return "time"
        return "memory" if ended.code == -signal.SIGKILL else "output"

    async def _running(self) -> Template:
        async with self._starting:
            if self._template and self._template.is_lost:
                await self._template.close()
                self._template = None
                self.restarts += 1
            if self._template is None:
                self._template = await Template.started(self._setup, self._environment)
            return self._template


def is_decided(answered: Judgement | Ended | None) -> TypeGuard[Judgement]:
    """Returns True if the worker gave a judgement within its limits."""
    return isinstance(answered, Judgement) and not answered.outcome.startswith("undecided:")
