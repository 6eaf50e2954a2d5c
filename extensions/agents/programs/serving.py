"""A program that serves many attempts, each as a line of JSON on its standard input and output.

A line to the program is {"id", "task", "base_url", "api_key"}. The program answers {"id", "result"}, {"id",
"error"} or {"id", "lost"}, in any order. An attempt that is lost, which is no fault of the model, is made
again. {"id", "ended": true} tells the program that an attempt is over.
"""

import asyncio
import itertools
import logging
import os
from asyncio.streams import FlowControlMixin
from io import FileIO

import msgspec

from extensions.agents.programs.messages import TIMEOUT, AgentTask, Run, read_result
from extensions.agents.programs.pool import MOST_TOLD, Pool, Program
from pipelinerl.judging.template import WorkerLostError
from pipelinerl.judging.worker_messages import printable

LONGEST_LINE = 1 << 20  # bytes
LONGEST_SHOWN = 200

log = logging.getLogger(__name__)


class ServedLine(msgspec.Struct, frozen=True):
    """A line of the program. result: JSON of a `Result`."""

    id: int
    result: msgspec.Raw = msgspec.Raw()
    error: str = ""
    lost: str = ""


class ServedProgram:
    """Runs attempts in one program, which is started again if it has ended.

    timeout_s: longest time of an attempt. A program that has said nothing for as long is given no further
        attempts, which another one runs, and ends after those that it has.
    has_served: True once an attempt has had a result.
    """

    def __init__(self, pool: Pool, timeout_s: float):
        self.pool = pool
        self._timeout_s = timeout_s
        self.has_served = False
        self._numbers = itertools.count()
        self._starting = asyncio.Lock()
        self._running: _Running | None = None
        self._silent: list[_Running] = []

    async def run(self, task: AgentTask) -> Run:
        """Returns how an attempt ended. Raises WorkerLostError if the program cannot be started."""
        async with self._starting:
            running = self._running
            if running is None or running.is_ended or running.url != task.url:
                if running:
                    await running.close()
                running = self._running = await _Running.started(self, task)
        heard = running.heard
        try:
            async with asyncio.timeout(self._timeout_s):
                return await running.run(next(self._numbers), task)
        except TimeoutError:
            if running.heard == heard and running is self._running:
                log.warning("the program has said nothing for %g s: another one is started", self._timeout_s)
                self._silent.append(running)
                self._running = None
            return Run(TIMEOUT)
        finally:
            if running in self._silent and not running.is_busy:
                self._silent.remove(running)
                await running.close()

    async def close(self) -> None:
        for running in filter(None, [self._running, *self._silent]):
            await running.close()


class _Running:
    """The running program, with its open attempts by their numbers.

    url: the one that it may connect to. heard: lines that ended an attempt.
    """

    def __init__(
        self,
        served: ServedProgram,
        url: str,
        program: Program,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ):
        self._served = served
        self.url = url
        self._program = program
        self._reader = reader
        self._writer = writer
        self._open: dict[int, asyncio.Future[Run]] = {}
        self._last = -1  # attempt
        self._has_strayed = False
        self._failed = 0
        self.heard = 0
        self.is_ended = False
        self._is_closed = False  # by the service
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def started(cls, served: ServedProgram, task: AgentTask) -> "_Running":
        given, giving = os.pipe2(os.O_CLOEXEC)
        reading, output = os.pipe2(os.O_CLOEXEC)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(LONGEST_LINE)
        receiving, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), FileIO(reading, "r")
        )
        transport, protocol = await loop.connect_write_pipe(FlowControlMixin, FileIO(giving, "w"))
        try:
            program = await served.pool.program(msgspec.structs.replace(task, key=""), given, output)
        except BaseException:
            receiving.close()
            transport.close()
            raise
        finally:
            os.close(given)
            os.close(output)
        return cls(served, task.url, program, reader, asyncio.StreamWriter(transport, protocol, None, loop))

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    async def run(self, number: int, task: AgentTask) -> Run:
        end = self._open[number] = asyncio.get_running_loop().create_future()
        self._last = number
        given = msgspec.Raw(task.task)
        self._write({"id": number, "task": given, "base_url": f"{task.url}/v1", "api_key": task.key})
        try:
            return await end
        finally:
            del self._open[number]
            if not end.done() or end.cancelled():
                self._write({"id": number, "ended": True})

    def _write(self, line: dict[str, object]) -> None:
        if not self.is_ended:
            self._writer.write(msgspec.json.encode(line) + b"\n")

    async def close(self) -> None:
        self._is_closed = True
        if not self.is_ended:  # else it ends by itself, and its attempts with it
            self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        why = "it ended"
        try:
            while line := await self._reader.readline():
                self._take(line)
        except ValueError:
            why = f"it printed a line of more than {LONGEST_LINE} bytes"
        finally:
            self.is_ended = True
            self._writer.close()
            try:
                await self._program.close(why)
            finally:
                self._end_all()

    def _end_all(self) -> None:
        """Ends the open attempts. If others have ended well, the program is not what is wrong with these."""
        waiting = [end for end in self._open.values() if not end.done()]
        if not waiting:
            return
        run = self._program.failed(self._program.why)
        for end in waiting:
            if self._served.has_served or self._is_closed:
                end.set_exception(WorkerLostError(f"the program that serves has ended: {run.words}"))
            else:
                end.set_result(run)

    def _take(self, line: bytes) -> None:
        """Ends the attempt that a line names. Other lines are logged, of which the first."""
        try:
            said = msgspec.json.decode(line, type=ServedLine)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._stray(f"{error}: {line[:LONGEST_SHOWN]!r}")
            return
        end = self._open.get(said.id)
        self.heard += bool(end)
        if not 0 <= said.id <= self._last:
            self._stray(f"there is no attempt {said.id}")
        elif end and not end.done() and said.lost:
            end.set_exception(WorkerLostError(f"the program says: {printable(said.lost)}"))
        elif end and not end.done():
            run = _run_of(said)
            if run.result is not None:
                self._served.has_served = True
            elif self._failed < MOST_TOLD:
                self._failed += 1
                log.warning("an attempt failed: %s: %s", run.why, run.words)
            end.set_result(run)

    def _stray(self, why: str) -> None:
        if not self._has_strayed:
            log.warning("the program prints what is no answer: %s", why)
        self._has_strayed = True


def _run_of(said: ServedLine) -> Run:
    if bytes(said.result) in (b"", b"null"):
        return Run("it reported an error", words=printable(said.error))
    try:
        return Run(result=read_result(bytes(said.result)))
    except ValueError as error:
        return Run(printable(f"its result cannot be read: {error}"))
