"""Requests on a server that hangs are asked elsewhere; those on one that is merely slow stay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from contracts.records import Rollout
from pipelinerl.clients import server_watch
from pipelinerl.clients.background import in_background
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.partial_completions import SegmentPolicy
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.clients.server_watch import ServerWatch
from pipelinerl.config import RolloutConfig
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec
from tests.clients.fake_servers import HANGS, FakeServer, served
from tests.clients.test_broken_servers import OneQuestion
from tests.limits import HANG_S
from tests.virtual_time import Traffic, in_virtual_time, time_passes

WHOLE = SegmentPolicy()
QUESTION = [{"role": "user", "content": "x"}]


def sampled(scenario, *servers: FakeServer, limit: int = 2, policy: SegmentPolicy = WHOLE):
    """What `scenario(client)` returns, while the servers are watched."""

    async def run():
        pool = ServerPool(limit)
        traffic = Traffic(held=lambda: sum(server.held for server in servers))
        async with served(*servers, traffic=traffic), aiohttp.ClientSession() as session:
            traffic.count(session)
            async with asked_again_and_again(pool, traffic):
                await pool.set_servers([server.url for server in servers])
                return await scenario(LLMClient(session, pool, Sampling("m", 1.0, 8, seed=5), policy))

    return in_virtual_time(run())


@asynccontextmanager
async def asked_again_and_again(pool: ServerPool, traffic: Traffic) -> AsyncIterator[None]:
    """Asks for the servers' health. Time passes while they hold all requests that are under way."""
    watch = ServerWatch([pool])

    async def ask() -> None:
        while True:
            await watch.ask_all(session)
            await asyncio.sleep(server_watch.EVERY_S)

    limit = aiohttp.ClientTimeout(total=server_watch.ANSWER_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=limit) as session:
        traffic.count(session)
        async with in_background(ask()), time_passes(lambda: traffic.is_still):
            yield


async def four_rollouts(client: LLMClient) -> list[Rollout]:
    run = RolloutRunner("r", OneQuestion(), client, RolloutConfig(retries=0, timeout_s=HANG_S))
    problem = OneQuestion().train_problem(0)
    return await asyncio.gather(*(run(problem, RolloutSpec(0, f"0-{i}", f"{i}")) for i in range(4)))


def test_requests_on_a_hung_server_are_asked_elsewhere_at_no_cost_and_with_the_same_seed():
    hung, good = FakeServer(fault=HANGS), FakeServer()
    rollouts = sampled(four_rollouts, hung, good)
    assert [(r.status, r.metrics["retries"]) for r in rollouts] == [("ok", 0)] * 4
    assert {r.completions[0].server for r in rollouts} == {good.url}
    assert len(hung.requests) == 2
    seeds = [request["seed"] for request in good.requests]
    assert len(set(seeds)) == len(seeds) == 4
    assert {request["seed"] for request in hung.requests} < set(seeds)


def test_a_server_that_comes_to_itself_gets_requests_again():
    hung, good = FakeServer(fault=HANGS), FakeServer(delay_s=1)

    async def scenario(client: LLMClient) -> None:
        await four_rollouts(client)
        hung.fault = None
        while len(hung.requests) == 2:
            await four_rollouts(client)

    sampled(scenario, hung, good)


@pytest.mark.parametrize("health_status", [200, 503])
def test_a_slow_server_that_answers_keeps_its_requests(health_status):
    """As one that loads weights, or generates nothing during an update."""
    slow = FakeServer(delay_s=60, health_delay_s=3, health_status=health_status)
    good = FakeServer()
    rollouts = sampled(four_rollouts, slow, good)
    assert [r.status for r in rollouts] == ["ok"] * 4
    assert len(slow.requests) == 2 and len(good.requests) == 2


def test_the_only_server_is_waited_for():
    hung = FakeServer(health_delay_s=600, delay_s=60)
    assert [r.status for r in sampled(four_rollouts, hung, limit=4)] == ["ok"] * 4
    assert len(hung.requests) == 4


def test_a_hung_server_costs_a_completion_its_current_segment_alone():
    first, second = FakeServer(), FakeServer()

    async def scenario(client: LLMClient):
        async def acquire_slot() -> (
            None
        ):  # after the first segment, the server that the second will be on hangs
            first.fault = HANGS

        client.acquire_slot = acquire_slot
        return await client.chat(QUESTION)

    def served_text(server: FakeServer) -> list[object]:
        return [request.get("prompt", "chat") for request in server.requests]

    # The fakes sample two tokens of a conversation, and as many as are asked for of token ids.
    first.finish_reasons = ["length"]
    answer = sampled(scenario, first, second, policy=SegmentPolicy(segment_tokens=2))
    assert answer.completion.token_ids.tolist() == [3, 4, 3, 4]
    assert served_text(first) == ["chat", [1, 2, 3, 4]] and served_text(second) == [[1, 2, 3, 4]]
    assert answer.completion.segments == [2]


def test_a_server_that_left_is_asked_no_more_and_another_at_its_url_begins_anew():
    hung, good = FakeServer(fault=HANGS), FakeServer()

    async def scenario() -> None:
        pool = ServerPool(2)
        watch, traffic = ServerWatch([pool]), Traffic(held=lambda: hung.held)
        async with (
            served(hung, good, traffic=traffic),
            aiohttp.ClientSession() as session,
            time_passes(lambda: traffic.is_still),
        ):
            traffic.count(session)
            await pool.set_servers([hung.url, good.url])
            for _ in range(server_watch.MISSES):
                await watch.ask_all(session)
            assert not pool.has_other(good.url)
            pool.forget(hung.url)
            await watch.ask_all(session)
            await pool.set_servers([hung.url, good.url])
            await watch.ask_all(session)
            assert pool.has_other(good.url)

    in_virtual_time(scenario())
