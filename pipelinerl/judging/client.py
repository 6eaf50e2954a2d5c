"""The client of the judging service, used by rollouts. It reconnects whenever its connection breaks."""

import asyncio
import itertools
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelinerl.errors.first_failures import FirstFailures
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.wire import (
    LONGEST_TEXT,
    Abandoned,
    Encoded,
    FrameError,
    Judgement,
    Question,
    Renewed,
    Reply,
    frame,
    read_frame,
    undecided,
)

SOCKET_VARIABLE = "PIPELINERL_JUDGING"  # path of the service's socket
SHORTEST_WAIT_S = 0.05  # wait before the next attempt to connect; doubles up to LONGEST_WAIT_S
LONGEST_WAIT_S = 2.0
log = logging.getLogger(__name__)


class JudgeError(Exception):
    """Judging failed for a reason other than the answer."""


class ConnectionLostError(Exception):
    """The connection ended before the reply."""


class Connection:
    """One connection to the service, with any number of open questions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._writer = writer
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Reply]] = {}
        self._sending = asyncio.Lock()
        self._reading = asyncio.create_task(self._read(reader))

    @property
    def is_lost(self) -> bool:
        """True if the reader has ended or a write has failed."""
        return self._reading.done() or self._writer.is_closing()

    async def ask(self, verifier: str, task: bytes, text: str) -> Reply:
        """Returns the reply. Raises ConnectionLostError, and FrameError for a question that is too long."""
        number = next(self._numbers)
        question = frame(Question(number, verifier, task, text))
        self._open[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(question)
            return await self._open[number]
        except asyncio.CancelledError:
            self._abandon(number)
            raise
        except OSError as error:
            raise ConnectionLostError from error
        finally:
            del self._open[number]

    def _abandon(self, number: int) -> None:
        """Tells the service to end its work on a question."""
        if not self.is_lost:
            self._writer.write(frame(Abandoned(number)))

    async def _send(self, question: bytes) -> None:
        """Sends a question after the previous ones, because asyncio copies its whole buffer at each write."""
        async with self._sending:
            if self.is_lost:
                raise ConnectionLostError
            self._writer.write(question)
            await self._writer.drain()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while reply := await read_frame(reader, Reply):
                if (question := self._open.get(reply.number)) and not question.done():
                    question.set_result(reply)
        except (OSError, FrameError) as error:
            log.info("the connection to the judging service broke: %s", error)
        finally:
            self._writer.close()
            for question in self._open.values():
                if not question.done():
                    question.set_exception(ConnectionLostError())


class JudgingClient:
    """A client of the judging service. If the service restarts, open questions are sent again.

    failures: counts faults of verifiers, to fail a run in which no first judgement succeeds.
    """

    def __init__(self, socket: str | Path, options: JudgingConfig, failures: FirstFailures | None = None):
        self._failures = failures
        self._socket = str(socket)
        self._options = options
        self._connecting: asyncio.Task[Connection] | None = None
        self.waiting = 0  # questions without a judgement

    async def judged(self, verifier: str, task: Any, text: str) -> Judgement:
        """Returns the judgement of a verifier on a text.

        `task` is the verifier's input, and picklable; `Encoded` or `Renewed` for a hosted verifier.

        Raises JudgeError if all tries failed or timed out, or the task is too long to send.
        """
        if len(text) > LONGEST_TEXT:
            return undecided("length")
        readable = text.encode(errors="replace").decode()  # lone surrogates cannot be encoded
        self.waiting += 1
        try:
            if isinstance(task, Renewed):
                return await self._tried(verifier, lambda: bytes(task.make()), readable)
            sent = bytes(task) if isinstance(task, Encoded) else pickle.dumps(task)
            return await self._tried(verifier, lambda: sent, readable)
        except FrameError as error:
            raise JudgeError(f"{verifier}: {error}") from error
        finally:
            self.waiting -= 1

    async def connect(self) -> None:
        """Waits until the service listens."""
        await self._connection()

    async def close(self) -> None:
        if self._connecting is None:
            return
        self._connecting.cancel()
        (connection,) = await asyncio.gather(self._connecting, return_exceptions=True)
        if isinstance(connection, Connection):
            await connection.close()

    async def _tried(self, verifier: str, task: Callable[[], bytes], text: str) -> Judgement:
        patience_s = self._options.queue_s + 2 * self._options.longest_s(verifier)
        for attempt in range(self._options.retries + 1):
            try:
                async with asyncio.timeout(patience_s):
                    reply = await self._reply(verifier, task, text)
            except TimeoutError:
                failure = f"no reply within {patience_s:g} s"
                is_fault = False
            else:
                if reply.judgement:
                    self._judged(reply.judgement)
                    return reply.judgement
                failure = reply.failed
                is_fault = reply.is_fault
            log.warning("verifier %s, attempt %d: %s", verifier, attempt + 1, failure)
        if self._failures and is_fault:
            self._failures.failed(failure)
        raise JudgeError(f"{verifier}: {failure}")

    def _judged(self, judgement: Judgement) -> None:
        is_verdict = judgement.word not in ("no_answer", "undecided") and not judgement.said
        if self._failures and is_verdict:
            self._failures.succeeded()

    async def _reply(self, verifier: str, task: Callable[[], bytes], text: str) -> Reply:
        while True:
            connection = await self._connection()
            try:
                return await connection.ask(verifier, task(), text)
            except ConnectionLostError:
                continue

    async def _connection(self) -> Connection:
        """Returns the connection. Concurrent callers share one attempt to connect."""
        known = self._connecting
        if known is None or (known.done() and (known.cancelled() or known.result().is_lost)):
            self._connecting = asyncio.create_task(self._connect())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> Connection:
        wait_s = SHORTEST_WAIT_S
        while True:
            try:
                return Connection(*await asyncio.open_unix_connection(self._socket))
            except OSError:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
