"""A server that answers wrongly, and fast, fails almost no rollout and takes no place from the others."""

import asyncio
from collections import Counter

import pytest

from contracts.records import Rollout
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import RolloutConfig
from pipelinerl.domains.base import Attempt, Domain, Problem
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec
from tests.clients.fake_servers import FAULTS, HANGS, FakeServer, served
from tests.limits import HANG_S
from tests.virtual_time import Traffic, in_virtual_time, time_passes

LIMIT = 8
ROLLOUTS = 120


class OneQuestion(Domain):
    name, train_size, heldout_size = "one question", 1, 1

    def train_problem(self, index: int) -> Problem:
        return Problem("p", [{"role": "user", "content": "x"}])

    heldout_problem = train_problem

    async def rollout(self, client: LLMClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        return Attempt([answer.completion], reward=1.0, success=True)


def rollouts_of(
    *servers: FakeServer,
    retries: int = 2,
    timeout_s: float = HANG_S,
    seed: int | None = None,
    count: int = ROLLOUTS,
) -> list[Rollout]:
    """What becomes of the rollouts, of which as many are under way as the servers take."""

    async def scenario() -> list[Rollout]:
        pool = ServerPool(LIMIT)
        traffic = Traffic(held=lambda: sum(server.held for server in servers))
        async with served(*servers, traffic=traffic), open_session(token=None) as session:
            traffic.count(session)
            await pool.set_servers([server.url for server in servers])
            client = LLMClient(session, pool, Sampling("m", 1.0, 8, seed, 50), newest=lambda: 3)
            policy = RolloutConfig(retries=retries, timeout_s=timeout_s)
            run = RolloutRunner("r", OneQuestion(), client, policy)
            places = asyncio.Semaphore(pool.capacity)

            async def one(index: int) -> Rollout:
                async with places:
                    return await run(OneQuestion().train_problem(0), RolloutSpec(0, f"0-{index}", f"{index}"))

            async with time_passes(lambda: traffic.is_still):
                return await asyncio.gather(*(one(index) for index in range(count)))

    return in_virtual_time(scenario())


@pytest.mark.parametrize("fault", FAULTS)
def test_one_broken_server_of_two_fails_no_rollout(fault):
    broken, good = FakeServer(fault=fault), FakeServer(delay_s=0.005)
    rollouts = rollouts_of(broken, good)
    assert Counter(rollout.status for rollout in rollouts) == {"ok": ROLLOUTS}
    assert good.most_in_flight == LIMIT
    assert 1 <= len(broken.requests) <= 4 * LIMIT
    assert len(good.requests) == ROLLOUTS


@pytest.mark.parametrize("fault", ["unhealthy", "aborted", "connection reset"])
def test_what_a_server_does_not_take_costs_no_attempt_and_keeps_its_seed(fault):
    broken, good = FakeServer(fault=fault), FakeServer()
    rollouts = rollouts_of(broken, good, retries=0, seed=5, count=2 * LIMIT)
    assert [(rollout.status, rollout.metrics["retries"]) for rollout in rollouts] == [("ok", 0)] * 2 * LIMIT
    assert broken.requests
    seeds = [request["seed"] for request in good.requests]
    assert len(set(seeds)) == len(seeds) == 2 * LIMIT
    assert {request["seed"] for request in broken.requests} <= set(seeds)


@pytest.mark.parametrize("fault", ["refused as invalid", "refused with OpenAI's status"])
def test_what_every_server_refuses_is_the_requests_own_fault_and_counts_against_none(fault):
    servers = [FakeServer(fault=fault) for _ in range(2)]
    rollouts = rollouts_of(*servers, retries=0)
    assert Counter(rollout.status for rollout in rollouts) == {"failed:server_invalid_request": ROLLOUTS}
    assert [len(server.requests) for server in servers] == [ROLLOUTS, ROLLOUTS]


def test_a_request_that_breaks_every_connection_is_not_asked_for_ever():
    servers = [FakeServer(fault="connection reset") for _ in range(3)]
    (rollout,) = rollouts_of(*servers, retries=0, count=1)
    assert rollout.status == "failed:server_connection"
    assert sum(len(server.requests) for server in servers) == 3


def test_a_server_that_makes_attempts_time_out_loses_its_places():
    hung, good = FakeServer(fault=HANGS), FakeServer(delay_s=0.05)
    rollouts = rollouts_of(hung, good, timeout_s=0.3)
    assert Counter(rollout.status for rollout in rollouts) == {"ok": ROLLOUTS}
    assert len(hung.requests) <= LIMIT + 2
