"""First attempts, and first judgements, that all fail alike."""

import asyncio

import pytest

from pipelinerl.domains.base import Attempt
from pipelinerl.errors import GaveUpError
from pipelinerl.errors.first_failures import MOST, FirstFailures
from pipelinerl.errors.part_faults import FaultError, describe_fault
from pipelinerl.judging.client import JudgeError, JudgingClient
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.verifiers import Judge, Verifier
from pipelinerl.judging.wire import Judgement, Question, Reply
from tests.judging.test_client import serving
from tests.rollouts.test_runner import GOOD, Echo, attempt


def fault_of(error: Exception) -> str:
    return describe_fault("mine.Part", "an Attempt", error)


ALIKE = [KeyError(f"x{i}") for i in range(MOST)]


@pytest.mark.parametrize(
    ("failures", "ends"),
    [
        (ALIKE, True),
        ([*ALIKE[1:], ValueError("no"), ALIKE[0]], True),
        (ALIKE[1:], False),
        ([*ALIKE[1:], ValueError("no")], False),
        ([*ALIKE[1:], None, *ALIKE], False),
    ],
)
def test_so_many_of_one_kind_end_a_run_unless_one_has_not_failed(failures, ends):
    first = FirstFailures("rollouts")

    def tell() -> None:
        for error in failures:
            first.succeeded() if error is None else first.failed(fault_of(error))

    if not ends:
        return tell()
    with pytest.raises(GaveUpError, match="the first 32 rollouts failed alike: mine.Part: .* KeyError: 'x"):
        tell()


class Sandbox(Echo):
    """A domain whose environment raises `error`, or gives `reward`."""

    def __init__(self, error: Exception | None = None, reward: object = 1.0):
        self._error = error
        self._reward = reward

    async def rollout(self, client, problem):
        answer = await client.chat(problem.messages)
        if self._error:
            raise self._error
        return Attempt([answer.completion], self._reward, True)


GIVEN = [{"error": RuntimeError("no sandbox")}, {"reward": None}, {"reward": "1"}, {"reward": float("nan")}]


@pytest.mark.parametrize("given", GIVEN)
def test_rollouts_of_a_domain_that_raises_end_the_run_with_its_line(given):
    domain = Sandbox(**given)
    first = FirstFailures("rollouts")
    for _ in range(MOST - 1):
        assert attempt([GOOD], domain, failures=first).failed
    with pytest.raises(GaveUpError, match=r"domain .*Sandbox \(.*test_\w+.py:\d+\): expected an Attempt"):
        attempt([GOOD], domain, failures=first)
    attempt([GOOD], failures=first)
    assert attempt([GOOD], domain, failures=first).failed


def test_failures_of_servers_end_no_run():
    first = FirstFailures("rollouts")
    for _ in range(MOST + 1):
        assert attempt([500], failures=first).failed


FAULT = "v (mine.py:3): expected a Judgement, but it raised KeyError: 'x'"


@pytest.mark.parametrize(
    ("is_fault", "error", "says"),
    [
        (True, GaveUpError, "32 judgements failed alike: v .mine.py:3"),
        (False, JudgeError, "^v: v .mine.py:3"),
    ],
)
def test_judgements_that_a_verifier_fails_end_the_run_with_its_line(tmp_path, is_fault, error, says):
    async def scenario() -> None:
        socket = tmp_path / "socket"
        client = JudgingClient(socket, JudgingConfig(retries=0), FirstFailures("judgements"))

        def answer(question: Question) -> Reply:
            if question.text == "":
                return Reply(question.number, Judgement(0.0, False, "no_answer"))
            return Reply(question.number, failed=FAULT, is_fault=is_fault)

        async with await serving(socket, answer):
            for _ in range(MOST - 1):
                await client.judged("v", 1, "")
                with pytest.raises(JudgeError):
                    await client.judged("v", 1, "1")
            with pytest.raises(error, match=says):
                await client.judged("v", 1, "1")
            await client.close()

    asyncio.run(scenario())


class Broken(Verifier):
    def __init__(self, given: object):
        self._given = given

    def judge(self, task, answer):
        if isinstance(self._given, BaseException):
            raise self._given
        return self._given


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "it gave None"),
        (True, "it gave True"),
        (KeyError("x"), "it raised KeyError: 'x'"),
        (SystemExit(3), "it ended the process, with status 3"),
    ],
)
def test_a_verifier_that_fails_is_said_with_its_line(given, says):
    judge = Judge({"v": Broken(given)}, max_characters=99)
    with pytest.raises(FaultError, match=rf"verifier .*Broken \(.*test_first_failures.py:\d+\): .*{says}"):
        judge("v", b"\x80\x04N.", "1")
