"""The domain of agents: programs that speak OpenAI's API solve the problems of another domain."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from shutil import which
from typing import Any

import msgspec

from extensions.agents.endpoint.server import Endpoint
from extensions.agents.endpoint.session import Session
from extensions.agents.options import AgentOptions, EndpointOptions, checked
from extensions.agents.programs.messages import TIMEOUT, AgentTask, Result, Run
from extensions.agents.tasks import Tasks
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.domains.base import Attempt, AttemptFailedError, Domain, Problem, Verified, judged_attempt
from pipelinerl.domains.wrapped import Wrapped
from pipelinerl.errors import GaveUpError
from pipelinerl.judging.options import HOSTED
from pipelinerl.judging.wire import Encoded, Judgement, Renewed

PROGRAMS = "agents"  # name of the hosted verifier
TARGET = "extensions.agents.programs.verifier.AgentPrograms"
OURS = "endpoint_"  # names of metrics begin so that no program says
MOST_FAILED = 64  # attempts in a row that end before an answer
ENDING_S = 60.0  # in which a program ends after its time
log = logging.getLogger(__name__)


class Agent(Wrapped):
    """An agent's attempts at the problems of another domain. Each attempt is a session of the endpoint.

    problems: the domain of the problems. A program is given {"id", "messages", "task"}. The task is a row of
        `Tasks`; for other domains, the problem's data if the program says its reward, else null.
    agent: `AgentOptions`. endpoint: `EndpointOptions`.
    seed: the run's seed; the problems already have their own.
    """

    def __init__(
        self, problems: Domain, agent: Mapping[str, Any], endpoint: Mapping[str, Any], seed: int = 0
    ):
        super().__init__(problems)
        self._agent = with_paths(checked(AgentOptions, "domain.agent", agent))
        self._options = checked(EndpointOptions, "domain.endpoint", endpoint)
        if self._agent.reward == "verifier" and not (isinstance(problems, Verified) and problems.verifiers):
            raise ValueError(
                "domain.agent.reward=verifier needs problems whose answers a verifier judges, and "
                f"{problems.name} has none; with domain.agent.reward=program the program says its reward"
            )
        self.programs = self._agent.programs
        if self._agent.tools:
            self.needs = self.needs | {"tools"}
        self._endpoint = Endpoint(self._options)
        self._silent_in_a_row = 0
        self._crashed: int | None = 0  # programs, while none has a result

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        options = {"_target_": TARGET, HOSTED: self._agent.timeout_s + ENDING_S, **self._agent.model_dump()}
        return {**self._domain.verifiers, PROGRAMS: options}

    async def open(self) -> None:
        await super().open()
        await self._endpoint.open()
        log.info("agents are answered at %s", self._endpoint.url)

    async def close(self) -> None:
        await self._endpoint.close()
        await super().close()

    async def rollout(self, client: LLMClient, problem: Problem) -> Attempt:
        """Returns the attempt. Metrics: the program's, agent_crashed, endpoint_<what> of the session."""
        sessions: dict[str, Session] = {}  # by key; all but the last one are of programs that were lost
        stopped = asyncio.Event()

        def task() -> Encoded:
            """Begins a session for a program that is asked for."""
            session = Session(client, self._options.history == "rendered", self._agent.tools, stopped)
            key = self._endpoint.key_of(session)
            sessions[key] = session
            given = json.dumps(self._given(problem), default=str).encode()
            return Encoded(msgspec.msgpack.encode(AgentTask(self._endpoint.url, key, given)))

        try:
            run = await self._run(client, task, stopped)
        finally:
            await self._endpoint.end(sessions)
        for session in sessions.values():
            if session.failure:
                raise session.failure
        return await self._attempt(client, problem, session, run)

    async def _run(self, client: LLMClient, task: Callable[[], Encoded], stopped: asyncio.Event) -> Run:
        """Returns how the program ended. Ends it if its session is stopped."""
        running = asyncio.create_task(client.judged(PROGRAMS, Renewed(task), ""))
        stopping = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                return Run(TIMEOUT)
            judgement: Judgement = running.result()
            return msgspec.json.decode(judgement.said, type=Run)
        finally:
            stopping.cancel()
            running.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)

    async def _attempt(self, client: LLMClient, problem: Problem, session: Session, run: Run) -> Attempt:
        """Returns the attempt of a program that has ended."""
        if session.last is None:
            self._raise_silent(session, run)
        self._silent_in_a_row = 0
        says_reward = self._agent.reward == "program"
        if says_reward and run.result and run.result.reward is None:
            run = Run(TIMEOUT if run.result.truncated else "it left no reward")
        if run.result is None:
            return self._failed(problem, session, run)
        return await self._ended(client, problem, session, run.result)

    async def _ended(self, client: LLMClient, problem: Problem, session: Session, result: Result) -> Attempt:
        completions = session.trained(self._options.train == "path")
        self._crashed = None
        said = {name: value for name, value in result.metrics.items() if not name.startswith(OURS)}
        metrics = {**said, **session.metrics(), "agent_crashed": 0.0}
        if self._agent.reward == "program":
            success = result.reward > 0 if result.success is None else result.success
            attempt = Attempt(completions, result.reward, success, reason="the program's own reward")
        else:
            answer = session.last.text if result.answer is None else result.answer
            attempt = judged_attempt(completions, await self._domain.judged(client, problem, answer))
        is_truncated = result.truncated or session.is_cut()
        return replace(attempt, metrics=metrics | attempt.metrics, is_truncated=is_truncated)

    def _failed(self, problem: Problem, session: Session, run: Run) -> Attempt:
        """Returns the attempt of a program that has no result, after an answer."""
        is_late = session.is_out_of_time or run.why == TIMEOUT
        if not is_late:
            log.info("an agent failed at %s: %s: %s", problem.problem_id, run.why, run.words)
            if self._crashed is not None:
                self._crashed += 1
                if self._crashed >= MOST_FAILED:
                    raise GaveUpError(f"gave up: the first {MOST_FAILED} agents failed: {words_of(run)}")
        if is_late:  # the end of its time has called off what it asked
            session.counts.pop("called_off", None)
        return Attempt(
            session.trained(self._options.train == "path"),
            self._agent.crash_reward,
            False,
            metrics=session.metrics() | {"agent_crashed": float(not is_late)},
            is_truncated=is_late or session.is_cut(),
            reason=f"the program failed: {words_of(run)}",
        )

    def _raise_silent(self, session: Session, run: Run) -> None:
        """Raises the failure of a program that was given no answer; GaveUpError if many were in a row."""
        if session.is_out_of_time or (run.why == TIMEOUT and session.counts["requests"]):
            raise TimeoutError("the attempt's time was over before an answer")
        name = "agent_silent" if run.result else "agent_timeout" if run.why == TIMEOUT else "agent_start"
        self._silent_in_a_row += 1
        if self._silent_in_a_row >= MOST_FAILED:
            raise GaveUpError(
                f"gave up: {MOST_FAILED} agents in a row ended before an answer: {words_of(run)}"
            )
        raise AttemptFailedError(name, words_of(run))

    def _given(self, problem: Problem) -> dict[str, Any]:
        """Returns what a program is given. What a verifier compares with is none of it."""
        if isinstance(self._domain, Tasks):
            task = self._domain.task_of(problem)
        else:
            task = problem.data if self._agent.reward == "program" else None
        return {"id": problem.problem_id, "messages": problem.messages, "task": task}


def words_of(run: Run) -> str:
    """Returns why a program failed, with the last line that it printed."""
    why = run.why or "it made no request, such as to OPENAI_BASE_URL"
    return f"{why}: {run.words or 'it printed nothing'} (logs/judging.log has more)"


def with_paths(agent: AgentOptions) -> AgentOptions:
    """Returns the options with absolute paths. Raises ValueError if one does not exist."""
    name, *arguments = agent.command
    program = sys.executable if name == "python" else which(name)  # not another environment's
    if program is None:
        raise ValueError(f"domain.agent.command: there is no program {name} here")
    files = [os.path.abspath(path) for path in agent.files]
    for path in files:
        if not os.path.exists(path):
            raise ValueError(f"domain.agent.files: there is no {path}")
    if name == "python" and arguments and arguments[0].endswith(".py") and not os.path.isfile(arguments[0]):
        raise ValueError(f"domain.agent.command: there is no file {os.path.abspath(arguments[0])}")
    command = [os.path.abspath(program), *map(_absolute, arguments)]
    return agent.model_copy(update={"command": command, "files": files})


def _absolute(argument: str) -> str:
    """Returns the absolute path of an argument that names a file: programs start in another directory."""
    names_path = os.sep in argument or (os.path.isfile(argument) and "." in argument)
    return os.path.abspath(argument) if names_path and os.path.exists(argument) else argument
