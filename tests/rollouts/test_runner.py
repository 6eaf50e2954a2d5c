"""One bad answer, one failing verifier, one slow attempt ends one rollout, with a name."""

import asyncio

import aiohttp
import msgspec
import numpy as np
import pytest
from aiohttp import web

from contracts.records import Failure, encode
from contracts.token_fields import TokenField, TokenFieldError
from pipelinerl.clients import routing
from pipelinerl.clients.attempt_requests import AttemptRequests
from pipelinerl.clients.faults import (
    InvalidResponseError,
    RequestRefusedError,
    ServerFailedError,
    ServerUnavailableError,
)
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import RolloutConfig
from pipelinerl.domains.base import Attempt, Domain, Problem
from pipelinerl.errors.first_failures import FirstFailures
from pipelinerl.judging.client import JudgeError
from pipelinerl.rollouts.runner import InvalidRewardError, RolloutRunner, RolloutSpec, failure_of
from tests.clients.fake_servers import serving
from tests.limits import HANG_S
from tests.virtual_time import in_virtual_time, time_passes

SAMPLING = Sampling("m", 1.0, 8)
CODES = {422: "invalid_request", 500: "engine_failed", 503: "unhealthy"}
GOOD = {
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "token_ids": [3, 4],
            "message": {"content": "hi"},
            "finish_reason": "stop",
            "logprobs": {"content": [{"logprob": -0.1}, {"logprob": -0.2}]},
            "weight_versions": [{"version": 3, "start": 0, "end": 1}, {"version": 4, "start": 1, "end": 2}],
        }
    ],
}


def changed(**choice) -> dict:
    return {**GOOD, "choices": [{**GOOD["choices"][0], **choice}]}


class Echo(Domain):
    name, train_size, heldout_size = "echo", 1, 1

    def __init__(self, judge=lambda text: 1.0, delay_s=0.0, token_fields=None):
        self._judge, self._delay_s, self._token_fields = judge, delay_s, token_fields or {}

    def train_problem(self, index: int) -> Problem:
        return Problem("p", [{"role": "user", "content": "x"}], domain="part")

    heldout_problem = train_problem

    async def rollout(self, client, problem):
        answer = await client.chat(problem.messages)
        await asyncio.sleep(self._delay_s)
        completion = msgspec.structs.replace(answer.completion, token_fields=self._token_fields)
        return Attempt([completion], reward=self._judge(answer.text), success=True)


ECHO = Echo()


def attempt(
    answers: list,
    domain: Domain = ECHO,
    retries: int = 0,
    timeout_s: float = HANG_S,
    seed: int | None = None,
    name: str = "train 0 0",
    seeds: list | None = None,
    token_fields: dict[str, TokenField] | None = None,
    failures: FirstFailures | None = None,
):
    """The rollout that comes of a server giving these answers in turn: a body, or a status. `seeds` is given
    the seed of each request."""
    left, seeds = list(answers), [] if seeds is None else seeds

    async def answer(request: web.Request) -> web.Response:
        seeds.append((await request.json()).get("seed"))
        next_one = left.pop(0)
        if isinstance(next_one, int):
            return web.json_response({"error": {"code": CODES[next_one], "message": "no"}}, status=next_one)
        return web.json_response(next_one)

    async def scenario():
        async with serving(web.post("/v1/chat/completions", answer)) as url:
            policy = RolloutConfig(retries=retries, timeout_s=timeout_s)
            sampling = Sampling("m", 1.0, 8, seed)
            return await rollout_of(url, domain, policy, sampling, name, token_fields, failures)

    return in_virtual_time(scenario())


async def rollout_of(
    url: str,
    domain: Domain,
    policy: RolloutConfig,
    sampling: Sampling = SAMPLING,
    name: str = "train 0 0",
    token_fields: dict[str, TokenField] | None = None,
    failures: FirstFailures | None = None,
):
    """The rollout of a domain by one server. Time passes while no request is under way."""
    pool = ServerPool(limit=2)
    await pool.set_servers([url])
    async with aiohttp.ClientSession() as session, time_passes(lambda: pool.in_flight == 0):
        client = LLMClient(session, pool, sampling)
        run = RolloutRunner("r", domain, client, policy, token_fields, failures=failures)
        rollout = await run(domain.train_problem(0), RolloutSpec(0, "0-0", name))
    assert pool.in_flight == 0
    return rollout


def test_a_good_answer():
    rollout = attempt([GOOD])
    assert (rollout.status, rollout.reward, rollout.versions) == ("ok", 1.0, [3, 4])
    assert rollout.metrics["retries"] == 0 and rollout.domain == "part"


def broken(text: str) -> float:
    raise ZeroDivisionError


CUT = changed(finish_reason="length")
ABORTED = changed(finish_reason="abort")
UNKNOWN = changed(finish_reason="a_word_of_a_newer_server")
ENDS = [
    ([CUT], {}, "truncated", 0),
    ([ABORTED, GOOD], {}, "ok", 0),
    ([UNKNOWN, GOOD], {}, "ok", 0),
    ([500, GOOD], {"retries": 1}, "ok", 1),
    ([{}], {}, "failed:bad_answer", 0),
    ([503] * 9, {"timeout_s": 0.3}, "failed:server_unhealthy", 0),
    ([ABORTED] * 9, {"timeout_s": 0.3}, "failed:server_abort", 0),
    ([GOOD], {"domain": Echo(delay_s=60), "timeout_s": 0.2}, "failed:timeout", 0),
    ([GOOD], {"domain": Echo(judge=broken)}, "failed:ZeroDivisionError", 0),
    ([GOOD], {"domain": Echo(judge=lambda text: float("nan"))}, "failed:bad_reward", 0),
]


@pytest.mark.parametrize(("answers", "options", "status", "retries"), ENDS)
def test_what_ends_an_attempt_is_its_status(answers, options, status, retries):
    rollout = attempt(answers, **options)
    assert (rollout.status, rollout.metrics["retries"]) == (status, retries)
    assert bool(rollout.completions) is not status.startswith("failed")


CONFIDENCE = {"confidence": TokenField(dtype="float32", fill=0.0)}


def test_the_declared_token_fields_are_recorded():
    given = {"confidence": np.array([0.5, 1], dtype=np.float32)}
    rollout = attempt([GOOD], Echo(token_fields=given), token_fields=CONFIDENCE)
    assert rollout.status == "ok"
    assert rollout.completions[0].token_fields["confidence"].tolist() == [0.5, 1]


def test_other_token_fields_fail_the_rollout(caplog):
    given = {"confidence": np.zeros(3, dtype=np.float32)}  # one too many
    rollout = attempt([GOOD], Echo(token_fields=given), token_fields=CONFIDENCE)
    assert rollout.status == "failed:bad_token_fields" and rollout.completions == []
    assert "the token field" in caplog.text


def test_what_is_not_trained_on_is_recorded_without_token_fields():
    rollout = attempt([GOOD], Echo(token_fields={"confidence": np.zeros(7)}))
    assert rollout.status == "ok" and rollout.completions[0].token_fields == {}
    assert encode(rollout)


@pytest.mark.parametrize(
    ("retries", "status"),
    [(0, "failed:server_connection"), (1, "failed:server_none_free")],  # the second time it rests
)
def test_a_server_that_is_gone(retries, status, monkeypatch):
    monkeypatch.setattr(routing, "SHORTEST_REST_S", 60.0)
    monkeypatch.setattr(routing, "LONGEST_REST_S", 60.0)

    policy = RolloutConfig(retries=retries, timeout_s=0.2)
    assert in_virtual_time(rollout_of("http://127.0.0.1:9", ECHO, policy)).status == status


# --- seeds ------------------------------------------------------------------------------------


class TwoTurns(Echo):
    async def rollout(self, client, problem):
        await client.chat(problem.messages)
        return await super().rollout(client, problem)


def seeds(answers: list, **options: object) -> list[int | None]:
    seeds: list[int | None] = []
    attempt(answers, seeds=seeds, **options)
    return seeds


def test_without_a_seed_none_is_asked_for():
    assert seeds([GOOD, GOOD], domain=TwoTurns()) == [None, None]


class InOrder(Echo):
    """Asks these questions."""

    def __init__(self, questions: str):
        super().__init__()
        self._questions = questions

    async def rollout(self, client, problem):
        for question in self._questions:
            await client.chat([{"role": "user", "content": question}])
        return await super().rollout(client, problem)


def test_a_seed_depends_on_what_is_asked_and_how_often_not_on_the_order():
    x, y, again, _ = seeds([GOOD] * 4, domain=InOrder("xyx"), seed=5)
    assert [y, x, again] == seeds([GOOD] * 4, domain=InOrder("yxx"), seed=5)[:3]
    assert len({x, y, again}) == 3


def test_an_answered_request_takes_no_blame_off_another_one_of_its_attempt():
    async def blamed():
        pool = ServerPool(4)
        await pool.set_servers(["http://a", "http://b"])
        requests = AttemptRequests(pool)
        failed = asyncio.Event()

        async def fails_and_hangs(url: str):
            if failed.is_set():
                await asyncio.Event().wait()
            failed.set()
            raise ServerUnavailableError("connection")

        async def answers(url: str):
            return "answer"

        hanging = asyncio.create_task(requests.ask(fails_and_hangs))
        await failed.wait()
        assert await requests.ask(answers) == "answer"
        hanging.cancel()
        await asyncio.wait([hanging])
        return requests.cause_of(TimeoutError())

    assert isinstance(asyncio.run(blamed()), ServerUnavailableError)


def test_the_same_attempt_asks_with_the_same_seeds_and_no_other_does():
    first = seeds([GOOD, GOOD], domain=TwoTurns(), seed=5)
    assert first == seeds([GOOD, GOOD], domain=TwoTurns(), seed=5)
    others = [seeds([GOOD, GOOD], domain=TwoTurns(), seed=6)]
    others += [seeds([GOOD, GOOD], domain=TwoTurns(), seed=5, name=name) for name in ("train 0 1", "eval 0")]
    every = first + sum(others, [])
    assert len(set(every)) == 8 and all(0 <= seed < 2**31 for seed in every)


def test_a_retry_asks_again_where_the_server_failed_and_anew_where_the_answer_was_bad():
    (plain,) = seeds([GOOD], seed=5)
    aborted = changed(finish_reason="abort")
    assert seeds([aborted, 500, GOOD], retries=1, seed=5) == [plain] * 3
    bad, again = seeds([{}, GOOD], retries=1, seed=5)
    assert bad == plain != again


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (TimeoutError(), Failure.TIMEOUT, "timeout"),
        (RequestRefusedError("context_length_exceeded"), Failure.TOO_LONG, "server_context_length_exceeded"),
        (RequestRefusedError("too_large"), Failure.TOO_LONG, "server_too_large"),
        (RequestRefusedError("invalid_request"), Failure.SERVER, "server_invalid_request"),
        (ServerUnavailableError("connection"), Failure.SERVER, "server_connection"),
        (ServerFailedError("500"), Failure.SERVER, "server_500"),
        (InvalidResponseError("no choices"), Failure.BAD_ANSWER, "bad_answer"),
        (JudgeError("gone"), Failure.JUDGE, "judge"),
        (InvalidRewardError("nan"), Failure.DOMAIN, "bad_reward"),
        (TokenFieldError("none"), Failure.DOMAIN, "bad_token_fields"),
        (KeyError("x"), Failure.DOMAIN, "KeyError"),
    ],
)
def test_each_failure_has_a_kind_and_a_word(error, kind, word):
    assert failure_of(error) == (kind, word)
