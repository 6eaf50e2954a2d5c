"""Starts the programs of agents, each in a directory of its own, and collects what they leave."""

import asyncio
import logging
import os
import re
import stat
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from functools import partial

from extensions.agents.programs.directories import (
    PREFIX,
    TooMuchError,
    check_size,
    remove,
    stale_directories,
)
from extensions.agents.programs.messages import RESULT, AgentSetup, AgentTask, Run, StartAgent
from pipelinerl.judging.isolation import clean_environment
from pipelinerl.judging.template import Template, WorkerLostError
from pipelinerl.judging.worker_messages import LOST, Ended, printable

log = logging.getLogger(__name__)
COMMAND = (sys.executable, "-m", "extensions.agents.programs.template")
TAIL_BYTES = 1 << 16  # of a program's output that are kept
READ_BYTES = 1 << 16
LOOK_S = 1.0  # between two looks at the sizes of directories
LOOK_SHARE = 20  # waits are at least so many times as long as the look before
PATIENCE_S = 10.0  # after which a template is lost that has not ended a program
LONGEST_RESULT = 1 << 16
MOST_TOLD = 3  # programs whose output is logged
LONGEST_TOLD = 4096  # characters
WORD = re.compile(r"\w")


class Pool:
    """Starts programs. setup: the command and its confinement."""

    def __init__(self, setup: AgentSetup):
        self.setup = setup
        self._template: Template | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False
        self.told = 0  # programs whose output was logged
        self._directories = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")

    async def start(self) -> None:
        """Starts the template. Raises TemplateError."""
        for stale in stale_directories(tempfile.gettempdir()):
            await remove(stale)
        await self._running()

    async def close(self) -> None:
        self._is_closed = True
        async with self._starting:
            if self._template:
                await self._template.close()
        await remove(self._directories)

    async def _running(self) -> Template:
        async with self._starting:
            if self._is_closed:
                raise WorkerLostError("the pool of agents is closed")
            if self._template and self._template.is_lost:
                await self._template.close()
                self._template = None
            if self._template is None:
                self._template = await Template.started(self.setup, clean_environment({}), COMMAND)
            return self._template

    async def program(self, task: AgentTask, given: int, output: int | None = None) -> "Program":
        """Returns a started program, which has the session's URL and key in its environment.

        given, output: its standard input and output; by default it prints with its errors. They stay the
        caller's. Raises WorkerLostError.
        """
        template = await self._running()
        directory = tempfile.mkdtemp(dir=self._directories)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        request = partial(StartAgent, url=task.url, key=task.key, directory=directory)
        descriptors = [given, writing if output is None else output, writing]
        try:
            number, ending = await template.fork(request, descriptors)
        except BaseException:
            os.close(reading)
            await remove(directory)
            raise
        finally:
            os.close(writing)
        return Program(self, template, number, ending, directory, reading)


class Program:
    """A started program. directory: its own. why: the reason why it was ended; "" if it was not."""

    def __init__(
        self,
        pool: Pool,
        template: Template,
        number: int,
        ending: asyncio.Future[Ended],
        directory: str,
        reading: int,
    ):
        self._pool = pool
        self._template = template
        self._number = number
        self._ending = ending
        self._reading = reading
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.directory = directory
        self.why = ""
        asyncio.get_running_loop().add_reader(reading, self._read)
        self._looking = asyncio.create_task(self._look())
        self._closing: asyncio.Task[None] | None = None

    async def ended(self) -> int:
        """Waits for its end, and returns its exit status. Raises WorkerLostError if it could not begin."""
        ended = await asyncio.shield(self._ending)
        if ended.code == LOST:
            raise WorkerLostError("a program could not be started")
        return ended.code

    async def close(self, why: str = "") -> None:
        """Ends the program and its descendants, and removes its directory, also if it is cancelled."""
        self.why = self.why or why
        self._closing = self._closing or asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if not self._ending.done():
            self._template.end(self._number)
            await asyncio.wait([self._ending], timeout=PATIENCE_S)
            if not self._ending.done():
                self._template.lose()
        self._looking.cancel()
        self._read()
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        await remove(self.directory)

    @property
    def last_line(self) -> str:
        """The last line with a word that it printed, as printable text."""
        return next((printable(line) for line in reversed(self.output.split("\n")) if WORD.search(line)), "")

    def failed(self, why: str) -> Run:
        """Returns how the program failed, and logs the end of its output if it is one of the first."""
        if self._pool.told < MOST_TOLD:
            self._pool.told += 1
            log.warning("a program failed: %s; it printed: %s", why, self.output[-LONGEST_TOLD:])
        return Run(why, words=self.last_line)

    @property
    def output(self) -> str:
        """The end of what it printed."""
        return b"".join(self._tail).decode(errors="replace")

    def result(self) -> bytes:
        """Returns the content of its result. Raises OSError or ValueError if there is none."""
        path = os.path.join(self.directory, RESULT)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST_RESULT:
                raise ValueError(f"the result is no file of at most {LONGEST_RESULT} bytes")
            return os.read(descriptor, LONGEST_RESULT)
        finally:
            os.close(descriptor)

    def _read(self) -> None:
        """Reads what it has printed, and keeps the end."""
        with suppress(BlockingIOError, OSError):
            while part := os.read(self._reading, READ_BYTES):
                self._tail.append(part)
                self._tail_bytes += len(part)
                while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                    self._tail_bytes -= len(self._tail.popleft())
            asyncio.get_running_loop().remove_reader(self._reading)  # its end

    async def _look(self) -> None:
        """Ends the program if its directory holds too much. Looks that take long are rarer."""
        most_bytes = self._pool.setup.limits.disk_bytes
        wait_s = LOOK_S
        while not self._ending.done():
            await asyncio.sleep(wait_s)
            began = time.monotonic()
            try:
                await asyncio.to_thread(check_size, self.directory, most_bytes)
            except TooMuchError as error:
                self.why = self.why or str(error)
                self._template.end(self._number)
            wait_s = max(LOOK_S, LOOK_SHARE * (time.monotonic() - began))
