"""The domain `agent`: what becomes of an attempt by how its program ends, and what it is given."""

import asyncio
import json
import sys
from contextlib import nullcontext, suppress

import aiohttp
import msgspec
import pytest

from extensions.agents import domain as domain_module
from extensions.agents.domain import PROGRAMS, Agent
from extensions.agents.programs.messages import AgentTask, Result, Run
from extensions.agents.tasks import Tasks
from pipelinerl.clients.completions import Sampling
from pipelinerl.clients.faults import RequestRefusedError, ServerFailedError
from pipelinerl.domains.base import Answer, AttemptFailedError
from pipelinerl.errors import GaveUpError
from pipelinerl.judging.client import JudgeError
from pipelinerl.judging.wire import Judgement
from tests.builders import completion

COMMAND = {"command": ["python", "-V"]}
CRASHED = Run("exit status 1", words="Error: no luck")


class Client:
    """A client whose `program` runs in place of the service's. verdicts: what verifiers were asked."""

    soft_deadline = nullcontext

    def __init__(self, program, error=None):
        self._program = program
        self._error = error
        self.verdicts = []

    attempt = None
    finish_reason = "stop"
    sampling = Sampling("policy", 1.0, 5)

    def limited(self, *_):
        return self

    async def chat(self, messages, after=None, tools=None):
        if self._error:
            raise self._error
        return Answer("the answer", completion([1, 2], [3, 4], finish_reason=self.finish_reason))

    async def judged(self, verifier, task, text):
        if verifier != PROGRAMS:
            self.verdicts.append((verifier, task, text))
            return Judgement(0.25, True, "right", {"right": 0.25})
        asked = msgspec.msgpack.decode(task.make(), type=AgentTask)
        run = await self._program(asked)
        return Judgement(0.0, not run.why, "ended", said=msgspec.json.encode(run).decode())


async def ask(task: AgentTask, **fields) -> int:
    url = f"{task.url}/s/{task.key}/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json={"messages": [{"role": "user", "content": "hello"}], **fields}) as answer,
    ):
        return answer.status


def asks_and(run: Run, times: int = 1):
    async def program(task: AgentTask) -> Run:
        for _ in range(times):
            await ask(task)
        return run

    return program


@pytest.fixture
def tasks(tmp_path):
    def made(verifier="mine", rows=({"id": "a", "question": "2?", "expected": "4"},)):
        path = tmp_path / "tasks.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Tasks(str(path), str(path), verifier)

    return made


def attempt(problems, client, agent=None, endpoint=None, times=1):
    async def attempted():
        agents = Agent(problems, COMMAND | (agent or {}), endpoint or {})
        await agents.open()
        try:
            for _ in range(times):
                found = await agents.rollout(client, agents.train_problem(0))
            return found
        finally:
            await agents.close()

    return asyncio.run(attempted())


def test_a_verifier_judges_the_programs_answer_or_its_last_message(tasks):
    metrics = {"steps": 2.0, "endpoint_unread": -9.0}
    said = Client(asks_and(Run(result=Result(answer="5", reward=9.0, metrics=metrics))))
    found = attempt(tasks(), said)
    assert said.verdicts == [("mine", "4", "5")] and (found.reward, found.success) == (0.25, True)
    assert found.metrics["steps"] == 2 and found.metrics["endpoint_answers"] == 1
    assert "endpoint_unread" not in found.metrics  # the run's own
    assert found.metrics["agent_crashed"] == 0 and len(found.completions) == 1
    silent = Client(asks_and(Run(result=Result())))
    attempt(tasks(), silent)
    assert silent.verdicts == [("mine", "4", "the answer")]


@pytest.mark.parametrize(("success", "found"), [(None, True), (False, False)])
def test_a_program_says_its_reward(tasks, success, found):
    client = Client(asks_and(Run(result=Result(reward=0.5, success=success))))
    said = attempt(tasks(None), client, {"reward": "program"})
    assert (said.reward, said.success, client.verdicts) == (0.5, found, [])


def test_a_program_is_given_no_expected_answer(tasks):
    given = []

    async def program(task):
        given.append(json.loads(task.task))
        await ask(task)
        return Run(result=Result(reward=1.0))

    attempt(tasks(), Client(program))
    attempt(tasks(None), Client(program), {"reward": "program"})
    messages = [{"role": "user", "content": '{"id": "a", "question": "2?"}'}]
    assert given == [{"id": "a", "messages": messages, "task": {"id": "a", "question": "2?"}}] * 2


def test_a_program_that_fails_after_an_answer_has_the_reward_of_a_crash(tasks):
    client = Client(asks_and(CRASHED, times=2))
    found = attempt(tasks(), client, {"crash_reward": -1.0})
    assert (found.reward, found.success, client.verdicts) == (-1.0, False, [])
    assert found.metrics["agent_crashed"] == 1 and len(found.completions) == 2


@pytest.mark.parametrize(
    ("run", "reward"),
    [
        (Run("timeout"), -1.0),
        (Run(result=Result(truncated=True)), -1.0),
        (Run(result=Result(reward=0.5, truncated=True)), 0.5),
    ],
)
def test_time_that_is_over_truncates(tasks, run, reward):
    agent = COMMAND | {"reward": "program", "crash_reward": -1.0}
    found = attempt(tasks(verifier=None), Client(asks_and(run)), agent)
    assert found.reward == reward
    assert found.is_truncated and found.metrics["agent_crashed"] == 0 and len(found.completions) == 1


@pytest.mark.parametrize(
    ("run", "name"),
    [(CRASHED, "agent_start"), (Run(result=Result()), "agent_silent"), (Run("timeout"), "agent_timeout")],
)
def test_a_program_that_was_given_no_answer_fails_by_name(tasks, run, name):
    with pytest.raises(AttemptFailedError) as error:
        attempt(tasks(), Client(asks_and(run, times=0)))
    assert error.value.name == name


def test_many_programs_in_a_row_without_an_answer_end_the_run(tasks, monkeypatch):
    monkeypatch.setattr(domain_module, "MOST_FAILED", 2)

    async def attempted(counts):
        agents = Agent(tasks(), COMMAND, {})
        await agents.open()
        try:
            for times in counts:
                with suppress(AttemptFailedError):
                    await agents.rollout(Client(asks_and(CRASHED, times)), agents.train_problem(0))
        finally:
            await agents.close()

    asyncio.run(attempted([0, 1, 0]))
    with pytest.raises(GaveUpError, match="no luck"):
        asyncio.run(attempted([0, 0]))


def test_programs_that_all_fail_after_an_answer_end_the_run(tasks, monkeypatch):
    monkeypatch.setattr(domain_module, "MOST_FAILED", 2)
    with pytest.raises(GaveUpError, match="first 2 agents failed: exit status 1: Error: no luck"):
        attempt(tasks(), Client(asks_and(CRASHED)), times=2)

    ends = iter([Run(result=Result()), CRASHED, CRASHED, CRASHED])

    async def program(task):
        await ask(task)
        return next(ends)

    assert attempt(tasks(), Client(program), times=4).metrics["agent_crashed"] == 1


def test_a_fault_of_a_server_ends_the_program_and_is_the_attempts(tasks):
    ended = []

    async def program(task):
        try:
            assert await ask(task) == 503
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(ServerFailedError):
        attempt(tasks(), Client(program, ServerFailedError("engine_failed")))
    assert ended == [True]


def test_a_refusal_of_a_server_is_the_programs_to_handle(tasks):
    statuses = []

    async def program(task):
        statuses.append(await ask(task))
        return Run(result=Result())

    with pytest.raises(AttemptFailedError, match="agent_silent|no request"):
        attempt(tasks(), Client(program, RequestRefusedError("context_length_exceeded")))
    assert statuses == [400]


def test_a_program_that_was_lost_begins_anew_and_the_first_key_is_refused(tasks):
    class Twice(Client):
        async def judged(self, verifier, task, text):
            lost = msgspec.msgpack.decode(task.make(), type=AgentTask)
            await ask(lost)
            return await super().judged(verifier, task, text)

    found = attempt(tasks(None), Twice(asks_and(Run(result=Result(reward=1.0)))), {"reward": "program"})
    assert len(found.completions) == 1


def test_the_end_of_an_attempt_ends_its_session(tasks):
    keys = []

    async def program(task):
        keys.append(task)
        await ask(task)
        raise JudgeError("no service")

    async def attempted():
        agents = Agent(tasks(), COMMAND, {})
        await agents.open()
        try:
            with pytest.raises(JudgeError):
                await agents.rollout(Client(program), agents.train_problem(0))
            assert agents._endpoint._sessions == {}  # nothing of it is kept
            return await ask(keys[0])
        finally:
            await agents.close()

    assert asyncio.run(attempted()) == 403


def test_only_the_path_is_trained_if_asked(tasks):
    program = asks_and(Run(result=Result(reward=1.0)), times=3)  # three beginnings
    every = attempt(tasks(None), Client(program), {"reward": "program"})
    path = attempt(tasks(None), Client(program), {"reward": "program"}, {"train": "path"})
    assert (len(every.completions), len(path.completions)) == (3, 1)


@pytest.mark.parametrize(
    ("agent", "endpoint", "words"),
    [
        ({"command": "python agent.py"}, {}, "domain.agent.command: "),
        ({"command": []}, {}, "domain.agent.command: it needs the program"),
        ({"command": ["no_such_program"]}, {}, "there is no program no_such_program"),
        ({"command": ["python", "no_such_file.py"]}, {}, "there is no file .*no_such_file.py"),
        ({"reward": "both"}, {}, "domain.agent.reward: "),
        ({"tools": 1}, {}, "domain.agent.tools: "),
        ({"serve": "no"}, {}, "domain.agent.serve: "),
        ({"isolation": "none"}, {}, "domain.agent.isolation: "),
        ({"timeout_s": 0}, {}, "domain.agent.timeout_s: "),
        ({"programs": 0.5}, {}, "domain.agent.programs: "),
        ({"disk_bytes": -1}, {}, "domain.agent.disk_bytes: "),
        ({"crash_reward": float("nan")}, {}, "domain.agent.crash_reward: "),
        ({"env": ["A"]}, {}, "domain.agent.env: "),
        ({"files": "abc"}, {}, "domain.agent.files: "),
        ({"files": ["/no/such"]}, {}, "there is no /no/such"),
        ({"colour": "red"}, {}, "domain.agent.colour: "),
        ({}, {"history": "all"}, "domain.endpoint.history: "),
        ({}, {"port": "x"}, "domain.endpoint.port: "),
        ({}, {"colour": "red"}, "domain.endpoint.colour: "),
    ],
)
def test_wrong_options_are_refused_by_name(tasks, agent, endpoint, words):
    with pytest.raises(ValueError, match=words):
        Agent(tasks(), COMMAND | agent, endpoint)


def test_problems_without_a_verifier_need_programs_that_reward(tasks):
    with pytest.raises(ValueError, match="reward=program"):
        Agent(tasks(None), COMMAND, {})


def test_python_is_the_runs_own_and_files_of_the_command_are_absolute(tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agents = Agent(tasks(), {"command": ["python", "tasks.jsonl", "--option"]}, {})
    assert agents.verifiers[PROGRAMS]["command"] == [
        sys.executable,
        str(tmp_path / "tasks.jsonl"),
        "--option",
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "has no line"),
        ("{", ":1 is no JSON"),
        ("\n[1]", ":2 is no JSON object"),
        ('{"id": 1}', "has no expected"),
        ('{"id": 1, "expected": 2}\n{"id": "1", "expected": 2}', "two lines of one id"),
    ],
)
def test_a_wrong_file_of_tasks_is_refused_with_the_line(tmp_path, lines, words):
    path = tmp_path / "tasks.jsonl"
    path.write_text(lines)
    with pytest.raises(ValueError, match=words):
        len(range(Tasks(str(path), str(path), "mine").train_size))


@pytest.mark.parametrize(("most", "is_cut"), [(None, True), (3, True), (2, False)])
def test_an_answer_that_the_program_limits_itself_is_not_truncated(tasks, most, is_cut):
    async def program(task):
        await ask(task, max_tokens=most)
        return Run(result=Result(reward=1.0))

    client = Client(program)
    client.finish_reason = "length"
    assert attempt(tasks(None), client, {"reward": "program"}).is_truncated == is_cut
