"""A program that serves many attempts, each as a line of JSON on its standard input and output.

A line to the program is {"id", "task", "base_url", "api_key"}. The program answers, in any order, {"id",
"result"} or {"id", "error"}. {"id", "ended": true} tells it that an attempt is over.
"""

import asyncio
import itertools
import os
from asyncio.streams import FlowControlMixin
from contextlib import suppress
from io import FileIO

import msgspec

from extensions.agents.programs.messages import AgentTask, Result, Run, checked_numbers
from extensions.agents.programs.pool import Pool, Program
from pipelinerl.judging.worker_messages import printable

LONGEST_LINE = 1 << 20  # bytes


class ServedLine(msgspec.Struct, frozen=True):
    """A line of the program."""

    id: int
    result: Result | None = None
    error: str = ""


class ServedProgram:
    """Runs attempts in one program, which is started again if it has ended."""

    def __init__(self, pool: Pool):
        self._pool = pool
        self._numbers = itertools.count()
        self._starting = asyncio.Lock()
        self._running: _Running | None = None

    async def run(self, task: AgentTask) -> Run:
        """Returns how an attempt ended. Raises WorkerLostError if the program cannot be started."""
        async with self._starting:
            if self._running is None or self._running.is_ended or self._running.url != task.url:
                await self.close()
                self._running = await _Running.started(self._pool, task)
        return await self._running.run(next(self._numbers), task)

    async def close(self) -> None:
        if self._running:
            await self._running.close()


class _Running:
    """The running program, with its open attempts by their numbers. url: the one that it may connect to."""

    def __init__(
        self, url: str, program: Program, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self.url = url
        self._program = program
        self._reader = reader
        self._writer = writer
        self._open: dict[int, asyncio.Future[Run]] = {}
        self.is_ended = False
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def started(cls, pool: Pool, task: AgentTask) -> "_Running":
        given, giving = os.pipe2(os.O_CLOEXEC)
        reading, output = os.pipe2(os.O_CLOEXEC)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(LONGEST_LINE)
        receiving, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), FileIO(reading, "r")
        )
        transport, protocol = await loop.connect_write_pipe(FlowControlMixin, FileIO(giving, "w"))
        try:
            program = await pool.program(AgentTask(task.url, "", task.task), given, output)
        except BaseException:
            receiving.close()
            transport.close()
            raise
        finally:
            os.close(given)
            os.close(output)
        return cls(task.url, program, reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def run(self, number: int, task: AgentTask) -> Run:
        end = self._open[number] = asyncio.get_running_loop().create_future()
        line = {
            "id": number,
            "task": msgspec.Raw(task.task),
            "base_url": f"{task.url}/v1",
            "api_key": task.key,
        }
        try:
            await self._write(line)
            return await end
        finally:
            del self._open[number]
            if not end.done() or end.cancelled():
                await self._write({"id": number, "ended": True})

    async def _write(self, line: dict[str, object]) -> None:
        if not self.is_ended:
            with suppress(OSError):
                self._writer.write(msgspec.json.encode(line) + b"\n")
                await self._writer.drain()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        why = "it ended"
        try:
            while line := await self._reader.readline():
                self._take(line)
        except ValueError as error:
            why = f"it wrote a line that cannot be read: {error}"
        finally:
            self.is_ended = True
            self._writer.close()
            await self._program.close(why)
            run = self._program.failed(self._program.why)
            for end in self._open.values():
                if not end.done():
                    end.set_result(run)

    def _take(self, line: bytes) -> None:
        """Ends the attempt that a line names. Raises ValueError if the line names none."""
        said = msgspec.json.decode(line, type=ServedLine)
        end = self._open.get(said.id)
        if end is None or end.done():
            return
        if said.result is None:
            end.set_result(Run("it reported an error", words=printable(said.error), program=said.id))
            return
        try:
            checked_numbers(said.result)
        except ValueError as error:
            end.set_result(Run(str(error)))
        else:
            end.set_result(Run(result=said.result))
