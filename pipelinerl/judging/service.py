"""The judging service, which passes questions from a Unix socket to workers.

The service parses neither texts nor tasks. It can be killed at any time without losing questions, because
clients send them again after a restart.
"""

import asyncio
import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from pipelinerl.judging.hosted import HostedVerifier
from pipelinerl.judging.measurements import Measurements
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.wire import Abandoned, FrameError, Judgement, Question, Reply, frame, read_frame
from pipelinerl.judging.workers import TemplateError, VerifierError, WorkerLostError, Workers

LONGEST_QUEUE = 10_000  # questions; while the queue is full, the service reads no further ones
PEER = struct.Struct("3i")  # <sys/socket.h>: ucred
log = logging.getLogger(__name__)


class Service:
    """The judging service. hosted: the verifiers that it asks itself. askers: user ids that may connect."""

    def __init__(
        self,
        workers: Workers,
        hosted: Mapping[str, HostedVerifier],
        options: JudgingConfig,
        measurements: Measurements,
        askers: set[int],
    ):
        self._workers = workers
        self._hosted = hosted
        self._options = options
        self._measurements = measurements
        self._askers = askers
        self._queue = asyncio.Semaphore(LONGEST_QUEUE)
        free = asyncio.Semaphore(options.processes)
        self._free = {
            name: asyncio.Semaphore(verifier.at_once) if verifier.at_once else free
            for name, verifier in hosted.items()
        }
        self._workers_free = free

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the questions of one connection until it is closed."""
        tasks: dict[int, asyncio.Task[None]] = {}  # by the numbers of their questions
        try:
            self._check(writer.get_extra_info("socket"))
            while question := await self._next(reader, tasks):
                task = asyncio.create_task(self._answer(question, writer))
                tasks[question.number] = task
                task.add_done_callback(lambda _, number=question.number: tasks.pop(number))
                task.add_done_callback(lambda _: self._queue.release())
        except (FrameError, OSError) as error:
            log.warning("a connection is closed: %s", error)
        finally:
            for task in tasks.values():
                task.cancel()
            writer.close()

    async def _next(
        self, reader: asyncio.StreamReader, tasks: Mapping[int, asyncio.Task[None]]
    ) -> Question | None:
        """Waits until the queue is not full, and returns the next question. Raises FrameError and OSError.

        Meanwhile it ends the tasks of questions that are abandoned.
        """
        await self._queue.acquire()
        question = None
        try:
            while isinstance(question := await read_frame(reader, Question | Abandoned), Abandoned):
                if question.number in tasks:
                    tasks[question.number].cancel()
        finally:
            if question is None:
                self._queue.release()
        return question

    def _check(self, connection: socket.socket) -> None:
        if sys.platform != "linux":  # only the directory's mode excludes other users
            return
        _, uid, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        if uid not in self._askers:
            raise FrameError(f"user {uid} may not ask")

    async def _answer(self, question: Question, writer: asyncio.StreamWriter) -> None:
        reply = frame(await self._reply(question))
        try:
            writer.write(reply)
            await writer.drain()
        except OSError:  # the client has disconnected
            return

    async def _reply(self, question: Question) -> Reply:
        with self._measurements.question(question.verifier) as measured:
            free = self._free.get(question.verifier, self._workers_free)
            queue_s = self._options.queue_s if free is self._workers_free else None
            try:
                async with asyncio.timeout(queue_s):
                    await free.acquire()
            except TimeoutError:
                return Reply(question.number, failed=f"no worker was free for {self._options.queue_s:g} s")
            try:
                measured.begin()
                reply = await self._judged(question)
            finally:
                free.release()
            if reply.judgement:
                measured.judged(reply.judgement)
            return reply

    async def _judged(self, question: Question) -> Reply:
        try:
            judgement = await self._judgement(question)
            return Reply(question.number, judgement)
        except VerifierError as error:
            log.warning("verifier %s failed: %s", question.verifier, error)
            return Reply(question.number, failed=str(error), is_fault=True)
        except (WorkerLostError, TemplateError, OSError) as error:
            log.warning("verifier %s failed: %s", question.verifier, error)
            return Reply(question.number, failed=f"{type(error).__name__}: {error}")
        except Exception as error:  # of a hosted verifier
            log.exception("verifier %s failed", question.verifier)
            return Reply(question.number, failed=f"{type(error).__name__}: {error}", is_fault=True)

    async def _judgement(self, question: Question) -> Judgement:
        if hosted := self._hosted.get(question.verifier):
            return await hosted.judged(question.task, question.text)
        return await self._workers.judged(question.verifier, question.task, question.text)


def bound(path: Path) -> socket.socket:
    """Returns a socket at a path, and creates its directory for this user only.

    Raises OSError if the directory exists and other users can access it.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    status = path.parent.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or path.parent.is_symlink():
        raise OSError(f"{path.parent} is not this user's alone")
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    path.chmod(0o600)
    return listening
