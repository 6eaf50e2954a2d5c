"""The domain of agents: programs that speak OpenAI's API solve the problems of another domain."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from shutil import which
from typing import Any

import msgspec

from extensions.agents.endpoint.server import Endpoint, EndpointOptions
from extensions.agents.endpoint.session import Session
from extensions.agents.programs.messages import AgentTask, Run
from extensions.agents.programs.verifier import TIMEOUT, AgentPrograms, checked_command
from extensions.agents.tasks import Tasks
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.domains.base import Attempt, AttemptFailedError, Domain, Problem, Verified, judged_attempt
from pipelinerl.domains.wrapped import Wrapped
from pipelinerl.errors import GaveUpError
from pipelinerl.judging.options import HOSTED
from pipelinerl.judging.wire import Encoded, Judgement, Renewed

PROGRAMS = "agents"  # name of the hosted verifier
TARGET = "extensions.agents.programs.verifier.AgentPrograms"
MOST_FAILED = 64  # programs in a row that end before an answer
GRACE_S = 60.0  # in which a program ends after its time
OURS = ("tools", "reward", "crash_reward")  # options of `agent` that are not the service's
log = logging.getLogger(__name__)


class Agent(Wrapped):
    """An agent's attempts at the problems of another domain. Each attempt is a session of the endpoint.

    problems: the domain of the problems. A program is given {"id", "messages", "task"}. The task is a row of
        `Tasks`; for other domains, the problem's data if the program says its reward, else null.
    agent: options of `AgentPrograms`, and three of this class. tools: True if the model shows tools.
        reward: `verifier` if the domain's verifier judges the program's answer, or `program` if the program
        says its reward. crash_reward: of a program that fails after an answer.
    endpoint: options of `EndpointOptions`.
    seed: the run's seed; the problems already have their own.
    """

    def __init__(
        self, problems: Domain, agent: Mapping[str, Any], endpoint: Mapping[str, Any], seed: int = 0
    ):
        super().__init__(problems)
        self.acts = True
        self._tools = _flag(agent, "tools", False)
        self._reward = agent.get("reward", "verifier")
        self._crash_reward = agent.get("crash_reward", 0.0)
        if self._reward not in ("verifier", "program"):
            raise ValueError(f"domain.agent.reward={self._reward} must be verifier or program")
        if self._reward == "verifier" and not (isinstance(problems, Verified) and problems.verifiers):
            raise ValueError(
                "domain.agent.reward=verifier needs problems whose answers a verifier judges, and "
                f"{problems.name} has none; with domain.agent.reward=program the program says its reward"
            )
        self._programs = _of_service(agent)
        if unknown := set(endpoint) - {field.name for field in fields(EndpointOptions)}:
            raise ValueError(f"domain.endpoint has no {min(unknown)}")
        self._options = EndpointOptions(**endpoint)
        self._endpoint = Endpoint(self._options)
        self._failed: set[int] = set()  # programs that ended before an answer, since the last that did not
        if self._tools:
            self.needs = self.needs | {"tools"}

    @property
    def verifiers(self) -> Mapping[str, Mapping[str, Any]]:
        longest_s = self._programs.get("timeout_s", 600.0) + GRACE_S
        return {**self._domain.verifiers, PROGRAMS: {"_target_": TARGET, HOSTED: longest_s, **self._programs}}

    async def open(self) -> None:
        await super().open()
        await self._endpoint.open()
        log.info("agents are answered at %s", self._endpoint.url)

    async def close(self) -> None:
        await self._endpoint.close()
        await super().close()

    async def rollout(self, client: LLMClient, problem: Problem) -> Attempt:
        """Returns the attempt. Metrics: the program's, agent_crashed, endpoint_<what> of the session."""
        sessions: list[tuple[str, Session]] = []

        def task() -> Encoded:
            """Begins a session for a program that is about to start. An earlier one has been lost."""
            session = Session(client, self._options.history == "rendered", self._tools)
            sessions.append((self._endpoint.key_of(session), session))
            given = json.dumps(self._given(problem)).encode()
            return Encoded(msgspec.msgpack.encode(AgentTask(self._endpoint.url, sessions[-1][0], given)))

        try:
            run = await self._run(client, task, sessions)
            return await self._attempt(client, problem, sessions[-1][1], run)
        finally:
            for key, _ in sessions:
                await self._endpoint.end(key)

    async def _run(self, client: LLMClient, task: Any, sessions: Sequence[tuple[str, Session]]) -> Run:
        """Returns how the program ended. Ends it if its session cannot go on."""
        running = asyncio.create_task(client.judged(PROGRAMS, Renewed(task), ""))
        try:
            while not running.done():
                stopped = [asyncio.create_task(session.stopped.wait()) for _, session in sessions[-1:]]
                await asyncio.wait([running, *stopped], return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
                for waiting in stopped:
                    waiting.cancel()
                if sessions and sessions[-1][1].stopped.is_set() and not running.done():
                    return Run(TIMEOUT)
            judgement: Judgement = running.result()
            return msgspec.json.decode(judgement.said, type=Run)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _attempt(self, client: LLMClient, problem: Problem, session: Session, run: Run) -> Attempt:
        """Returns the attempt of a program that has ended. Raises the failure of its session."""
        if session.failure:
            raise session.failure
        completions = session.trained(self._options.train == "path")
        if not completions:
            self._raise_silent(run)
        self._failed.clear()
        counts = {f"endpoint_{name}": float(count) for name, count in session.counts.items()}
        is_out_of_time = session.is_out_of_time or run.why == TIMEOUT
        if run.result is None:
            if not is_out_of_time:
                log.info("an agent failed at %s: %s: %s", problem.problem_id, run.why, run.words)
            metrics = counts | {"agent_crashed": float(not is_out_of_time)}
            return Attempt(
                completions,
                self._crash_reward,
                False,
                metrics=metrics,
                is_out_of_time=is_out_of_time,
            )
        metrics = {**run.result.metrics, **counts, "agent_crashed": 0.0}
        if self._reward == "program":
            if run.result.reward is None:
                raise AttemptFailedError("agent_reward", "the program left no reward")
            reward = run.result.reward
            success = reward > 0 if run.result.success is None else run.result.success
            return Attempt(completions, reward, success, metrics=metrics)
        answer = session.last.text if run.result.answer is None else run.result.answer
        attempt = judged_attempt(completions, await self._domain.judged(client, problem, answer))
        return replace(attempt, metrics=metrics | attempt.metrics)

    def _given(self, problem: Problem) -> dict[str, Any]:
        """Returns what a program is given. What a verifier compares with is none of it."""
        if isinstance(self._domain, Tasks):
            task = self._domain.task_of(problem)
        else:
            task = problem.data if self._reward == "program" else None
        return {"id": problem.problem_id, "messages": problem.messages, "task": task}

    def _raise_silent(self, run: Run) -> None:
        """Raises the failure of a program that was given no answer; GaveUpError if many were in a row."""
        name = "agent_silent" if run.result else "agent_timeout" if run.why == TIMEOUT else "agent_start"
        words = f"{run.why}: {run.words}" if run.words else run.why or "it made no request"
        self._failed.add(run.program)
        if len(self._failed) >= MOST_FAILED:
            raise GaveUpError(f"gave up: {MOST_FAILED} agents in a row ended before an answer: {words}")
        raise AttemptFailedError(name, words)


def _of_service(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `AgentPrograms`, with absolute paths. Raises ValueError for wrong ones."""
    options = {name: value for name, value in agent.items() if name not in OURS}
    command = checked_command(options.get("command") or [])
    program = sys.executable if command[0] == "python" else which(command[0])  # not of another environment
    if program is None:
        raise ValueError(f"domain.agent.command: there is no program {command[0]} here")
    arguments = [os.path.abspath(part) if os.path.exists(part) else part for part in command[1:]]
    options["command"] = [os.path.abspath(program), *arguments]
    options["files"] = [os.path.abspath(path) for path in options.get("files") or ()]
    for path in options["files"]:
        if not os.path.exists(path):
            raise ValueError(f"domain.agent.files: there is no {path}")
    try:
        AgentPrograms(**options)
    except TypeError as error:
        raise ValueError(f"domain.agent: {error}") from error
    return options


def _flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"domain.agent.{name}={value} must be true or false")
    return value
