"""Runs programs of Python: confined in a fork of a warm interpreter, and in a box if they need files."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

from extensions.programs.messages import Box, ProgramSetup
from extensions.programs.namespaces import OF_USER, check, setup_of
from extensions.programs.pool import Programs, Ran
from pipelinerl.judging.isolation import Level, Limits
from pipelinerl.judging.template import TemplateError

# In the source of a program that catches the refusal of a file, or whose module raises an error of its own.
OF_FILES = re.compile(
    rb"open|Path|tempfile|sqlite3|shelve|dbm|makedirs|mkdir|zipfile|tarfile|memmap|save|logging|multiprocessing"
)


def is_fine(ran: Ran) -> bool:
    return ran.is_fine


class Python:
    """Runs programs at this level, and at `namespaces` those that need files to write.

    lacks: once started, the reason why programs cannot write files; "" if they can.
    """

    def __init__(self, level: Level, limits: Limits, cpu_s: float, output_bytes: int):
        self._level = level
        limits = replace(limits, processes=OF_USER if self._is_sealed else 0)
        self._programs = Programs(ProgramSetup(level, limits, cpu_s), cpu_s, output_bytes)
        self._boxed = Programs(setup_of(Box.PYTHON, limits, cpu_s), cpu_s, output_bytes)
        self.lacks = ""

    async def start(self) -> None:
        """Starts the template, and tries the levels. Raises TemplateError if programs cannot run."""
        await self._programs.start()
        try:
            await check()
        except TemplateError as error:
            self.lacks = str(error)

    async def close(self) -> None:
        await asyncio.gather(self._programs.close(), self._boxed.close())

    @property
    def words(self) -> str:
        """Returns the level, and what it lacks, in words."""
        if self.lacks:
            return f"programs cannot write files: {self.lacks}"
        which = "programs that write files" if self._is_sealed else "programs"
        return f"{which} run at namespaces"

    async def run(
        self, source: bytes, entry: str | None, given: bytes, passes: Callable[[Ran], bool] = is_fine
    ) -> Ran:
        """Runs a program, or its function `entry`, on this standard input. Raises WorkerLostError.

        passes: whether a run is what is wanted. If not, a program that may need a file runs in a box.
        """
        if self.lacks:
            return await self._programs.run(source, entry, given)
        if not self._is_sealed:
            return await self._boxed.run(source, entry, given)
        first = await self._programs.run(source, entry, given)
        may_need_files = first.why_not == "files" or (not first.why_not and OF_FILES.search(source))
        if passes(first) or not may_need_files:
            return first
        ran = await self._boxed.run(source, entry, given)
        return replace(ran, spent_s=ran.spent_s + first.spent_s)

    @property
    def _is_sealed(self) -> bool:
        return self._level is Level.SEALED
