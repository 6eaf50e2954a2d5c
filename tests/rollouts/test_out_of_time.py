"""An attempt whose time ends: with tokens sampled by then it is truncated, without any it has failed."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from contracts.records import Rollout
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.clients.attempt_clock import AttemptClock
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.partial_completions import SegmentPolicy
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import RolloutConfig
from pipelinerl.conversations.base import Parsed
from pipelinerl.domains.base import Attempt, ChatClient, Problem
from pipelinerl.filters import Overlong
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec
from tests.clients.fake_servers import HANGS, FakeServer, good_answer, served
from tests.clients.test_broken_servers import OneQuestion
from tests.virtual_time import Traffic, in_virtual_time, pass_time, time_passes

TIMEOUT_S = 0.5
MESSAGES = [{"role": "user", "content": "x"}]


@dataclass
class LastingServer(FakeServer):
    """Answers some requests, and then refuses them or never ends one. status: of a refusal."""

    answers: int = 1
    status: int | None = None

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        if len(self.requests) <= self.answers:
            answer = good_answer(2, "length")
            answer["prompt_token_ids"] = self.requests[-1].get("prompt", answer["prompt_token_ids"])
            return web.json_response(answer)
        if self.status:
            return web.json_response({"error": {"code": "unhealthy"}}, status=self.status)
        self.fault = HANGS
        await self.hold(0)


class Talk(OneQuestion):
    """Makes so many turns; the reward is the number of them that have a text."""

    def __init__(self, turns: int):
        self._turns = turns

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answers = [await client.chat(problem.messages)]
        for _ in range(self._turns - 1):
            answers.append(await client.chat(MESSAGES, after=answers[-1]))
        reward = float(sum(bool(answer.text) for answer in answers))
        return Attempt([answer.completion for answer in answers], reward, success=False)


class Continued:
    """Conversations whose prompts are one token, and grow by one a turn."""

    def render(self, conversation) -> list[int]:
        return [9]

    def parse(self, asked, completion, text) -> Parsed:
        return Parsed(text, text)

    def extend(self, asked, completion, answer, messages) -> list[int]:
        return [*completion.prompt_token_ids.tolist(), *completion.token_ids.tolist(), 9]


async def immediately() -> None:
    pass


def rollout_of(
    server: FakeServer,
    segment_tokens: int | None = None,
    turns: int = 1,
    acquire_slot: Callable[[], Awaitable[None]] = immediately,
) -> Rollout:
    async def scenario() -> Rollout:
        pool = ServerPool(limit=2)
        traffic = Traffic(held=lambda: server.held)
        async with served(server, traffic=traffic), open_session(token=None) as session:
            traffic.count(session)
            await pool.set_servers([server.url])
            policy = RolloutConfig(retries=0, timeout_s=TIMEOUT_S, segment_tokens=segment_tokens)
            segments = SegmentPolicy(segment_tokens)
            client = LLMClient(
                session,
                pool,
                Sampling("m", 1.0, 8),
                segments,
                acquire_slot=acquire_slot,
                conversations=Continued(),
            )
            domain = Talk(turns)
            began = asyncio.get_running_loop().time()
            async with time_passes(lambda: traffic.is_still):
                run = RolloutRunner("r", domain, client, policy)
                rollout = await run(domain.train_problem(0), RolloutSpec(0, "0-0", "train 0 0"))
            if rollout.status == "truncated":  # before the attempt's end, so that its domain can judge
                assert asyncio.get_running_loop().time() < began + TIMEOUT_S
        assert pool.in_flight == 0
        return rollout

    return in_virtual_time(scenario())


def test_the_segments_that_were_sampled_in_time_are_a_truncated_rollout():
    rollout = rollout_of(LastingServer(answers=2), segment_tokens=2)
    assert (rollout.status, rollout.reward, rollout.sampled_tokens) == ("truncated", 1.0, 4)
    assert (rollout.metrics["out_of_time"], rollout.metrics["retries"]) == (1.0, 0.0)
    assert rollout.failure is None
    assert not Overlong()([rollout], [])[0]


def test_a_rollout_that_waits_between_segments_is_truncated():
    rollout = rollout_of(LastingServer(answers=9), segment_tokens=2, acquire_slot=asyncio.Event().wait)
    assert (rollout.status, rollout.sampled_tokens) == ("truncated", 2)


def test_a_turn_without_a_token_ends_a_conversation_that_has_some():
    rollout = rollout_of(LastingServer(answers=2), turns=4)
    assert (rollout.status, rollout.reward, rollout.sampled_tokens) == ("truncated", 2.0, 4)
    assert [len(c.token_ids) for c in rollout.completions] == [2, 2, 0, 0]
    (sequence, *others) = training_sequences(rollout, [1.0] * 4)
    assert sum(s.loss_mask.sum() for s in [sequence, *others]) == 4


def test_the_early_end_stands_still_with_the_clock():
    async def scenario() -> None:
        async with asyncio.timeout(2) as timeout:
            clock = AttemptClock(timeout)
            async with clock.ending_early(1) as early:
                with clock.paused():
                    pass_time(3)
                now = asyncio.get_running_loop().time()
                assert (early.when(), timeout.when()) == (now + 1, now + 2)

    in_virtual_time(scenario())
