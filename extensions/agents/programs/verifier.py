"""Runs the programs of agents in the judging service, each for one attempt, or one program for all."""

import asyncio
import math
from collections.abc import Mapping, Sequence

import msgspec

from extensions.agents.programs.fence import paths_of
from extensions.agents.programs.messages import AgentLimits, AgentSetup, AgentTask, Run, read_result
from extensions.agents.programs.pool import Pool
from extensions.agents.programs.selftest import why_not_fenced
from extensions.agents.programs.serving import ServedProgram
from pipelinerl.judging.hosted import HostedVerifier
from pipelinerl.judging.in_memory import in_memory
from pipelinerl.judging.isolation import Level
from pipelinerl.judging.template import TemplateError
from pipelinerl.judging.wire import Judgement
from pipelinerl.judging.workers import VerifierError

ISOLATIONS = ("auto", "fenced", "process")
TIMEOUT = "timeout"


class AgentPrograms(HostedVerifier):
    """Runs a program for each question, whose task is an `AgentTask`. The judgement says how it ended.

    command: the program and its arguments. serve: True if one program runs all attempts.
    env: variables of its environment. files: paths that a fenced program may read, beside its command's.
    isolation: fenced, process, or auto for the stronger one that passes the self-test.
    timeout_s: longest time of an attempt. programs: attempts at once.
    memory_bytes: writable memory of a process. disk_bytes: of the program's directory.
    """

    def __init__(
        self,
        command: Sequence[str],
        serve: bool = False,
        env: Mapping[str, str] | None = None,
        files: Sequence[str] = (),
        isolation: str = "auto",
        timeout_s: float = 600.0,
        programs: int = 64,
        memory_bytes: int = 4 << 30,
        disk_bytes: int = 1 << 28,
    ):
        self._command = checked_command(command)
        if isolation not in ISOLATIONS:
            raise ValueError(f"domain.agent.isolation={isolation} must be one of {', '.join(ISOLATIONS)}")
        for name, value in {
            "timeout_s": timeout_s,
            "programs": programs,
            "memory_bytes": memory_bytes,
        }.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"domain.agent.{name}={value} must be a positive number")
        self.at_once = int(programs)
        self._serve = serve
        self._env = {name: str(value) for name, value in (env or {}).items()}
        self._files = list(files)
        self._isolation = isolation
        self._timeout_s = timeout_s
        self._limits = AgentLimits(memory_bytes, disk_bytes)
        self._pool: Pool | None = None
        self._served: ServedProgram | None = None
        self._level = ""

    async def start(self, level: Level) -> None:
        readable = [*paths_of(self._command), *self._files]
        why_not = "domain.agent.isolation=process"
        if self._isolation != "process":
            why_not = await asyncio.to_thread(why_not_fenced, self._limits)
        if why_not and self._isolation == "fenced":
            raise TemplateError(f"domain.agent.isolation=fenced cannot be had here: {why_not}")
        self._level = f"agents run at process ({why_not})" if why_not else "agents are fenced"
        self._pool = Pool(AgentSetup(self._command, not why_not, self._limits, readable), self._env)
        await self._pool.start()
        self._served = ServedProgram(self._pool) if self._serve else None

    @property
    def level(self) -> str:
        return self._level

    async def close(self) -> None:
        if self._served:
            await self._served.close()
        if self._pool:
            await self._pool.close()

    async def judged(self, task: bytes, text: str) -> Judgement:
        """Returns the judgement, which says in JSON how the program ended (`Run`)."""
        try:
            asked = msgspec.msgpack.decode(task, type=AgentTask)
        except msgspec.MsgspecError as error:
            raise VerifierError(f"the task of an agent cannot be read: {error}") from error
        run = await self._run(asked)
        return Judgement(0.0, not run.why, "ended", said=msgspec.json.encode(run).decode())

    async def _run(self, task: AgentTask) -> Run:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await (self._served.run(task) if self._served else self._alone(task))
        except TimeoutError:
            return Run(TIMEOUT)

    async def _alone(self, task: AgentTask) -> Run:
        with in_memory(task.task) as given:
            program = await self._pool.program(task, given)
        try:
            code = await program.ended()
            if code or program.why:
                return program.failed(program.why or f"exit status {code}")
            try:
                return Run(result=read_result(program.result()), program=program.number)
            except FileNotFoundError:
                return program.failed("it left no result")
            except (OSError, ValueError) as error:
                return program.failed(f"its result cannot be read: {error}")
        finally:
            await program.close()


def checked_command(command: Sequence[str]) -> list[str]:
    if isinstance(command, str) or not command or not all(isinstance(part, str) for part in command):
        raise ValueError(f"domain.agent.command={command} must be a list: [python, my_agent.py]")
    return list(command)
