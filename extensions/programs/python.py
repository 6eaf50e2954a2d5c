"""Runs programs of Python: confined in a fork of a warm interpreter, and in a box if they need files."""

import asyncio
import re
from dataclasses import replace

from extensions.programs.messages import Box, ProgramSetup
from extensions.programs.namespaces import check, setup_of
from extensions.programs.pool import Programs, Ran
from pipelinerl.judging.isolation import Level, Limits
from pipelinerl.judging.template import TemplateError

# What writes a file, in a program's source: it runs in a box from the first, because it may catch a refusal.
WRITES = re.compile(
    rb"""open\s*\(\s*(?![012]\b|["']/dev/(std|null))|tempfile|sqlite3|shelve|\bdbm\b|mkdir|makedirs|zipfile|tarfile"""
    rb"""|memmap|multiprocessing|write_(text|bytes)|FileHandler|touch\(|gzip|fcntl|symlink|tofile|np\.save|mkfifo"""
)


class Python:
    """Runs programs at this level, and at `namespaces` those that need files to write.

    lacks: once started, the reason why programs cannot write files; "" if they can.
    """

    def __init__(self, level: Level, limits: Limits, cpu_s: float, output_bytes: int):
        self._level = level
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

    async def run(self, source: bytes, entry: str | None, given: bytes) -> Ran:
        """Runs a program, or its function `entry`, on this standard input. Raises WorkerLostError."""
        if self.lacks:
            return await self._programs.run(source, entry, given)
        if not self._is_sealed or WRITES.search(source):
            return await self._boxed.run(source, entry, given)
        refused = await self._programs.run(source, entry, given)
        if refused.why_not != "files":  # such a run does not pass, so a second one is no second guess
            return refused
        ran = await self._boxed.run(source, entry, given)
        return replace(ran, spent_s=ran.spent_s + refused.spent_s)

    @property
    def _is_sealed(self) -> bool:
        return self._level is Level.SEALED
