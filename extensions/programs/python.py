"""Runs programs of Python: confined in a fork of a warm interpreter, and in a box if they need files."""

from extensions.programs.messages import ProgramSetup
from extensions.programs.namespaces import started
from extensions.programs.pool import Programs, Ran
from pipelinerl.judging.isolation import Level, Limits
from pipelinerl.judging.template import TemplateError


class Python:
    """Runs programs at this level, and at `namespaces` those that need files to write.

    lacks: once started, the reason why programs cannot write files; "" if they can.
    """

    def __init__(self, level: Level, limits: Limits, cpu_s: float, output_bytes: int):
        self._programs = Programs(ProgramSetup(level, limits, cpu_s), cpu_s, output_bytes)
        self._boxed: Programs | None = None
        self._options = (limits, cpu_s, output_bytes)
        self.lacks = ""

    async def start(self) -> None:
        """Starts both templates. Raises TemplateError if programs cannot run at the level."""
        await self._programs.start()
        try:
            self._boxed = await started(*self._options)
        except TemplateError as error:
            self.lacks = str(error)

    async def close(self) -> None:
        await self._programs.close()
        if self._boxed:
            await self._boxed.close()

    async def run(self, source: bytes, entry: str | None, given: bytes) -> Ran:
        """Runs a program, or its function `entry`, on this standard input. Raises WorkerLostError."""
        ran = await self._programs.run(source, entry, given)
        if ran.why_not == "files" and self._boxed:
            return await self._boxed.run(source, entry, given)
        return ran
