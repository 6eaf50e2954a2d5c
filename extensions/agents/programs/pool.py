"""Starts the programs of agents, each in a directory of its own, and collects what they leave."""

import asyncio
import logging
import os
import re
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from extensions.agents.programs.messages import AgentSetup, AgentTask, Run, StartAgent
from pipelinerl.judging.isolation import clean_environment
from pipelinerl.judging.template import Template, WorkerLostError
from pipelinerl.judging.worker_messages import LOST, Ended, printable

log = logging.getLogger(__name__)
COMMAND = (os.sys.executable, "-m", "extensions.agents.programs.template")
TAIL_BYTES = 1 << 16  # of a program's output that are kept
READ_BYTES = 1 << 16
LOOK_S = 1.0  # between two looks at the sizes of directories
MOST_FILES = 10_000  # in a directory
GRACE_S = 10.0  # after which a template is lost that has not ended a program
LONGEST_RESULT = 1 << 16
MOST_TOLD = 3  # programs whose output is logged
LONGEST_TOLD = 4096  # characters
WORD = re.compile(r"\w")
DISK = "its directory holds too much"


class Pool:
    """Starts programs. environment: variables of all. setup: the command and its confinement."""

    def __init__(self, setup: AgentSetup, environment: Mapping[str, str]):
        self._setup = setup
        self._environment = clean_environment(environment)
        self._template: Template | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False
        self.told = 0  # programs whose output was logged
        self._directories = tempfile.TemporaryDirectory(prefix="agents-", ignore_cleanup_errors=True)

    async def start(self) -> None:
        """Starts the template. Raises TemplateError."""
        await self._running()

    async def close(self) -> None:
        self._is_closed = True
        async with self._starting:
            if self._template:
                await self._template.close()
        await asyncio.to_thread(self._directories.cleanup)

    async def _running(self) -> Template:
        async with self._starting:
            if self._is_closed:
                raise WorkerLostError("the pool of agents is closed")
            if self._template and self._template.is_lost:
                await self._template.close()
                self._template = None
            if self._template is None:
                self._template = await Template.started(self._setup, clean_environment({}), COMMAND)
            return self._template

    async def program(
        self, task: AgentTask, given: int | None = None, output: int | None = None
    ) -> "Program":
        """Returns a started program, which has the session's URL and key in its environment.

        given, output: its standard input and output; None = none, and with the error output. They stay the
        caller's. Raises WorkerLostError.
        """
        template = await self._running()
        directory = Path(tempfile.mkdtemp(dir=self._directories.name))
        environment = self._environment | {
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "RESULT": str(directory / "result.json"),
            "OPENAI_BASE_URL": f"{task.url}/v1",
            "OPENAI_API_KEY": task.key,
        }
        with ExitStack() as stack:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, writing)
            os.set_blocking(reading, False)
            if given is None:
                given = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, given)
            request = partial(
                StartAgent,
                environment=environment,
                directory=str(directory),
                port=urlsplit(task.url).port or 80,
            )
            try:
                number, ending = template.fork(
                    request, [given, writing if output is None else output, writing]
                )
            except WorkerLostError:
                os.close(reading)
                shutil.rmtree(directory, ignore_errors=True)
                raise
        return Program(self, template, number, ending, directory, reading, self._setup.limits.disk_bytes)


class Program:
    """A started program. number: of its start. directory: its own. why: it was ended, if it was."""

    def __init__(
        self,
        pool: Pool,
        template: Template,
        number: int,
        ending: asyncio.Future[Ended],
        directory: Path,
        reading: int,
        disk_bytes: int,
    ):
        self._pool = pool
        self._template = template
        self.number = number
        self._ending = ending
        self._reading = reading
        self._disk_bytes = disk_bytes
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.directory = directory
        self.why = ""
        asyncio.get_running_loop().add_reader(reading, self._read)
        self._looking = asyncio.create_task(self._look())

    async def ended(self) -> int:
        """Waits for its end, and returns its exit status. Raises WorkerLostError if it could not begin."""
        ended = await asyncio.shield(self._ending)
        if ended.code == LOST:
            raise WorkerLostError("a program could not be started")
        return ended.code

    async def close(self, why: str = "") -> None:
        """Ends the program and its descendants, and removes its directory."""
        self.why = self.why or why
        if not self._ending.done():
            self._template.end(self.number)
            await asyncio.wait([self._ending], timeout=GRACE_S)
            if not self._ending.done():
                self._template.lose()
        self._looking.cancel()
        self._read()
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)

    @property
    def last_line(self) -> str:
        """The last line with a word that it printed, as printable text."""
        return next((printable(line) for line in reversed(self.output.split("\n")) if WORD.search(line)), "")

    def failed(self, why: str) -> Run:
        """Returns how the program failed, and logs the end of its output if it is one of the first."""
        if self._pool.told < MOST_TOLD:
            self._pool.told += 1
            log.warning("a program failed: %s; it printed: %s", why, self.output[-LONGEST_TOLD:])
        return Run(why, words=self.last_line, program=self.number)

    @property
    def output(self) -> str:
        """The end of what it printed."""
        return b"".join(self._tail).decode(errors="replace")

    def result(self) -> bytes:
        """Returns the content of its result. Raises OSError or ValueError if there is none."""
        descriptor = os.open(self.directory / "result.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
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
        """Ends the program if its directory holds too much."""
        while not self._ending.done():
            await asyncio.sleep(LOOK_S)
            if await asyncio.to_thread(holds_too_much, self.directory, self._disk_bytes):
                self.why = self.why or DISK
                self._template.end(self.number)


def holds_too_much(directory: Path, most: int) -> bool:
    size = files = 0
    for _, directories, names, descriptor in os.fwalk(directory, onerror=None):
        files += len(names) + len(directories)
        if files > MOST_FILES:
            return True
        for name in names:
            with suppress(OSError):
                size += os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_blocks * 512
    return size > most
