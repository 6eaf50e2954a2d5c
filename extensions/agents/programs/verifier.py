"""Runs the programs of agents in the judging service, each for one attempt, or one program for all."""

import asyncio
from typing import Any

import msgspec

from extensions.agents.options import AgentOptions
from extensions.agents.programs.fence import paths_of
from extensions.agents.programs.messages import (
    TIMEOUT,
    AgentLimits,
    AgentSetup,
    AgentTask,
    Run,
    read_result,
)
from extensions.agents.programs.pool import Pool
from extensions.agents.programs.selftest import why_not_fenced
from extensions.agents.programs.serving import ServedProgram
from pipelinerl.judging.hosted import HostedVerifier
from pipelinerl.judging.in_memory import in_memory
from pipelinerl.judging.isolation import Level, clean_environment
from pipelinerl.judging.template import TemplateError
from pipelinerl.judging.wire import Judgement
from pipelinerl.judging.worker_messages import printable
from pipelinerl.judging.workers import VerifierError


class AgentPrograms(HostedVerifier):
    """Runs a program for each question, whose task is an `AgentTask`. The judgement says how it ended.

    options: those of `AgentOptions`.
    """

    def __init__(self, **options: Any):
        self._options = AgentOptions.model_validate(options)
        self.at_once = self._options.programs
        self._pool: Pool | None = None
        self._served: ServedProgram | None = None
        self._level = ""

    async def start(self, level: Level) -> None:
        options = self._options
        limits = AgentLimits(options.memory_bytes, options.disk_bytes)
        why_not = "domain.agent.isolation=process"
        if options.isolation != "process":
            why_not = await asyncio.to_thread(why_not_fenced, limits)
        if why_not and options.isolation == "fenced":
            raise TemplateError(f"domain.agent.isolation=fenced cannot be had here: {why_not}")
        self._level = f"agents run at process ({why_not})" if why_not else "agents are fenced"
        environment = clean_environment({name: str(value) for name, value in options.env.items()})
        readable = [*paths_of(options.command), *options.files]
        self._pool = Pool(AgentSetup(options.command, environment, not why_not, limits, readable))
        await self._pool.start()
        self._served = ServedProgram(self._pool, options.timeout_s) if options.serve else None

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
        run = await (self._served.run(asked) if self._served else self._alone(asked))
        return Judgement(0.0, not run.why, "ended", said=msgspec.json.encode(run).decode())

    async def _alone(self, task: AgentTask) -> Run:
        with in_memory(task.task) as given:
            program = await self._pool.program(task, given)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                code = await program.ended()
            if code or program.why:
                return program.failed(program.why or f"exit status {code}")
            return Run(result=read_result(program.result()))
        except TimeoutError:
            return Run(TIMEOUT)
        except FileNotFoundError:
            return program.failed("it left no result in the file that RESULT names")
        except (OSError, ValueError) as error:
            return program.failed(printable(f"its result cannot be read: {error}"))
        finally:
            await program.close()
