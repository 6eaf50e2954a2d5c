"""Runs programs on tests, one confined process for each test. The judging service calls it."""

import asyncio
import os
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO

from extensions.programs.messages import EXECUTED, ProgramSetup, RunProgram
from extensions.programs.statuses import NOT_DECIDED, Status
from pipelinerl.judging.in_memory import in_memory
from pipelinerl.judging.isolation import Level, clean_environment
from pipelinerl.judging.template import Template, TemplateError, WorkerLostError
from pipelinerl.judging.worker_messages import LOST, Ended

COMMAND = (sys.executable, "-m", "extensions.programs.template")
TRIES = 3  # processes for a test, if they are lost through no fault of the program
KILLS = 2  # by the kernel, before the program is taken as the cause
AT_ONCE = 128  # programs, fewer than requests that the template's socket holds
PATIENCE_S = 30.0  # longest wait for a template beside what a program may take
PATIENCE = 20  # longest time of a program on a busy machine, in its longest CPU time
GRACE_S = 5.0  # after which a template is lost that has not ended a program
LOST_S = 0.2  # wait after a process that could not begin
READ_BYTES = 1 << 16  # of a pipe that are read at once
KILLED = -9
TOO_MUCH_TIME = -24  # SIGXCPU


@dataclass(frozen=True)
class Ran:
    """How a program did on an input. why_not: the limit that it exceeded, or what it needs; "" if none.

    is_fine: True if it ended with status 0. spent_s: its CPU time, or its time without waits for a processor.
    """

    output: bytes
    is_fine: bool
    spent_s: float
    why_not: str = ""


class Programs:
    """Runs programs. output_bytes: the longest output. cpu_s: the longest CPU time of a test."""

    def __init__(self, setup: ProgramSetup, cpu_s: float, output_bytes: int):
        self._setup = setup
        self._cpu_s = cpu_s
        self._output_bytes = output_bytes
        self._patience_s = PATIENCE_S + PATIENCE * cpu_s
        self._environment = clean_environment({"MALLOC_ARENA_MAX": "2"})  # an arena for each thread is 64 MiB
        self._template: Template | None = None
        self._is_closed = False
        self._starting = asyncio.Lock()
        self._free = asyncio.Semaphore(AT_ONCE)

    async def start(self, innocent: bytes = b"print(input())") -> None:
        """Starts the template, and tries a program that prints its input. Raises TemplateError."""
        await self._running()
        try:
            ran = await self.run(innocent, None, b"innocent")
        except WorkerLostError as error:
            raise TemplateError(f"programs cannot run here: {error}") from error
        if ran.output.rstrip() != b"innocent":
            raise TemplateError(
                f"programs cannot run here: {ran.why_not or 'an innocent one raises an error'}"
            )

    async def close(self) -> None:
        self._is_closed = True
        async with self._starting:
            if self._template:
                await self._template.close()

    async def run(self, source: bytes, entry: str | None, given: bytes) -> Ran:
        """Runs a program, or its function `entry`, on this standard input. Raises WorkerLostError."""
        kills = 0
        for _ in range(TRIES):
            with suppress(WorkerLostError):
                async with self._free:
                    output, ended = await self._tried(source, entry, given)
                is_sealed = self._setup.level is not Level.PROCESS  # or a program may signal itself
                if ended.code == LOST and is_sealed:
                    await asyncio.sleep(LOST_S)
                    continue
                kills += ended.code == KILLED and not ended.why_not
                ran = self._ran(output, ended)
                if ran.why_not != "memory" or ended.code != KILLED or kills == KILLS:
                    return ran
        raise WorkerLostError("programs are lost, or killed, before they end")

    async def _tried(self, source: bytes, entry: str | None, given: bytes) -> tuple[bytes, Ended]:
        template = await self._running()
        with ExitStack() as stack:
            reading, writing = _pipe(stack)
            said, saying = _pipe(stack) if self._setup.box else (None, None)
            files = [stack.enter_context(in_memory(data)) for data in (given, source)]
            descriptors = [files[0], writing.fileno(), files[1]]
            if saying:
                descriptors.append(saying.fileno())
            number, ending = await template.fork(partial(RunProgram, entry=entry), descriptors)
            writing.close()
            if saying:
                saying.close()
            try:
                async with asyncio.timeout(self._patience_s):
                    output = await self._read(reading.fileno())
                    if len(output) > self._output_bytes:
                        template.end(number)
                    ended = await asyncio.shield(ending)
            except TimeoutError as error:
                template.end(number)
                await asyncio.wait([ending], timeout=GRACE_S)
                if not ending.done():
                    template.lose()
                raise WorkerLostError("the template of programs does not answer") from error
            except BaseException:
                template.end(number)
                raise
            if said and ended.code >= 0 and EXECUTED not in (said.read(READ_BYTES) or b""):
                raise WorkerLostError("a box of a program could not be made")
        return output, ended

    def _ran(self, output: bytes, ended: Ended) -> Ran:
        why_not = ended.why_not or NOT_DECIDED.get(ended.code, "")
        if len(output) > self._output_bytes:
            why_not = "output"
        elif ended.code == TOO_MUCH_TIME or ended.cpu_s > self._cpu_s:
            why_not = "time"
        elif ended.code == KILLED and not why_not:
            why_not = "memory"
        spent_s = max(ended.cpu_s, ended.spent_s)
        return Ran(output, ended.code == Status.FINE and not why_not, spent_s, why_not)

    async def _read(self, reading: int) -> bytes:
        """Returns what the program prints until its end, or until it has printed too much."""
        loop = asyncio.get_running_loop()
        output = bytearray()
        done = loop.create_future()

        def read() -> None:
            with suppress(BlockingIOError):
                part = os.read(reading, READ_BYTES)
                output.extend(part)
                if not (done.done() or (part and len(output) <= self._output_bytes)):
                    done.set_result(None)

        loop.add_reader(reading, read)
        try:
            await done
        finally:
            loop.remove_reader(reading)
        return bytes(output)

    async def _running(self) -> Template:
        async with self._starting:
            if self._is_closed:
                raise WorkerLostError("the pool of programs is closed")
            if self._template and self._template.is_lost:
                await self._template.close()
                self._template = None
            if self._template is None:
                self._template = await Template.started(self._setup, self._environment, COMMAND)
            return self._template


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    """Returns the end to read, which does not block, and the end to write. The stack closes both."""
    reading, writing = (FileIO(end, mode) for end, mode in zip(os.pipe(), ("r", "w"), strict=True))
    os.set_blocking(reading.fileno(), False)
    stack.enter_context(reading)
    stack.enter_context(writing)
    return reading, writing
