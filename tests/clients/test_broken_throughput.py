"""A server that hangs and one that is broken take no time from the third."""

import asyncio
import statistics
import time

import pytest

from pipelinerl.clients import server_watch
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.clients.server_watch import watching
from pipelinerl.config import RolloutConfig
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec
from tests.clients.fake_servers import FakeServer, served
from tests.clients.test_broken_servers import OneQuestion

LIMIT, ROLLOUTS, DELAY_S, PAIRS = 4, 32, 0.05, 3


async def seconds(client: LLMClient, publications: int = 2) -> float:
    """How long the rollouts take, of which as many are under way as the pool takes, between publications."""
    run = RolloutRunner("r", OneQuestion(), client, RolloutConfig(retries=2, timeout_s=600))
    places = asyncio.Semaphore(client.pool.capacity)
    urls = client.pool.urls

    async def one(index: int) -> None:
        async with places:
            rollout = await run(OneQuestion().train_problem(0), RolloutSpec(0, f"0-{index}", f"{index}"))
            assert rollout.status == "ok"
        if index % (ROLLOUTS // publications) == 0:
            await client.pool.set_servers(urls)

    began = time.monotonic()
    await asyncio.gather(*(one(index) for index in range(ROLLOUTS)))
    return time.monotonic() - began


@pytest.mark.long  # it measures time
@pytest.mark.parametrize("fault", ["engine failed", "no token"])
def test_the_third_keeps_nine_tenths_of_its_throughput(fault, monkeypatch):
    monkeypatch.setattr(server_watch, "EVERY_S", 0.02)
    monkeypatch.setattr(server_watch, "ANSWER_TIMEOUT_S", 0.1)
    alone, third = FakeServer(delay_s=DELAY_S), FakeServer(delay_s=DELAY_S)
    hung, broken = FakeServer(fault="hangs"), FakeServer(fault=fault)

    async def scenario() -> float:
        pools = ServerPool(LIMIT), ServerPool(LIMIT)
        async with served(alone, third, hung, broken), open_session(token=None) as session:
            await pools[0].set_servers([alone.url])
            await pools[1].set_servers([hung.url, broken.url, third.url])
            clients = [LLMClient(session, pool, Sampling("m", 1.0, 8)) for pool in pools]
            async with watching(pools), asyncio.timeout(60):
                await seconds(clients[1])  # in which it is noticed who hangs
                taken = [[await seconds(client) for client in clients] for _ in range(PAIRS)]
        return statistics.median(healthy / broken for healthy, broken in taken)

    assert asyncio.run(scenario()) >= 0.9
