"""Sends many hostile requests at a time, next to a client that only generates, and checks the responses."""

import asyncio
import itertools
import os
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from contracts.conformance.inference.server import Server as Generating
from tests.inference_adapters.hostile.answers import fault_of
from tests.inference_adapters.hostile.mutations import mutations
from tests.inference_adapters.hostile.other_routes import to_other_routes
from tests.inference_adapters.servers import Server
from tests.limits import HANG_S

AT_A_TIME = 16
PATIENCE_S = 2.0  # for a response: a mutation may request the longest possible completion
NORMAL = 11  # responses to the normal client, before it is stopped
PROMPTS = [[5, 6, 7, 8], [20, 21], [40, 41, 42, 43, 44, 45]]  # of the normal client
TOKENS = 12
COUNT = int(os.environ.get("HOSTILE_REQUESTS", "500"))
SEED = int(os.environ.get("SEED", "0"))
MEBIBYTE = 2**20
# Memory of the requests that are in progress together, most of all the long texts. The allocator may keep it
# for later requests. It does not grow with their number: a leak of 10 kB per request exceeds it.
MOST_GROWN = 96 * MEBIBYTE


@dataclass
class Onslaught:
    """The results of sending hostile requests."""

    sent: int = 0
    given_up: int = 0
    faults: list[str] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)  # count by status
    normal: int = 0  # responses to the normal client
    grown_bytes: int = 0  # by which the engine's processes grew after the first part


def harm_nobody(server: Server, model: str, token: str | None = None) -> None:
    """Asserts that a server withstands the requests: the same process, correct responses, flat memory."""
    outcome = asyncio.run(onslaught(server, model, COUNT, SEED, token))
    print(outcome)
    assert server.process.poll() is None
    assert outcome.faults == []
    assert outcome.sent == COUNT, outcome
    assert outcome.answers[200] > 0 and outcome.answers[400] > COUNT / 10, outcome
    assert outcome.normal >= NORMAL and outcome.grown_bytes < MOST_GROWN, outcome


async def onslaught(
    server: Server, model: str, count: int, seed: int = 0, token: str | None = None
) -> Onslaught:
    """Sends `count` requests: to other routes, then mutations. The normal client has its own connections."""
    outcome = Onslaught()
    requests = itertools.islice(itertools.chain(to_other_routes(model), mutations(model, seed)), count)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(HANG_S)) as http:
        generating = Generating(http, server.url, token)
        normal = [asyncio.create_task(_generate(generating, outcome, stream)) for stream in (False, True)]
        try:
            # After these, one-time growth and caching are complete.
            await _send_all(server, itertools.islice(requests, min(count // 2, 450)), outcome, token)
            before = await _resident_bytes(generating)
            await _send_all(server, requests, outcome, token)
            await _wait_for_normal(outcome, normal)
        finally:
            for task in normal:
                task.cancel()
            ended = await asyncio.gather(*normal, return_exceptions=True)
        outcome.grown_bytes = await _resident_bytes(generating) - before
    outcome.faults += [repr(end) for end in ended if not isinstance(end, asyncio.CancelledError)]
    return outcome


async def _generate(server: Generating, outcome: Onslaught, stream: bool) -> None:
    """Generates repeatedly and greedily, expects the same result each time, and counts the responses."""
    first: dict[int, list[int]] = {}
    for number in itertools.count():
        which = number % len(PROMPTS)
        sample = await server.complete(PROMPTS[which], TOKENS, stream, temperature=0)
        assert all(-100 < logprob <= 0 for logprob in sample.logprobs), sample
        assert sample.finish_reason in ("stop", "length") and sample.spans, sample
        assert first.setdefault(which, sample.token_ids) == sample.token_ids, (first, sample)
        outcome.normal += 1


async def _send_all(server: Server, requests, outcome: Onslaught, token: str | None) -> None:
    async def work() -> None:
        for request in requests:
            if server.process.poll() is not None:
                raise AssertionError(
                    f"the server ended with status {server.process.returncode}: {outcome.faults}"
                )
            outcome.sent += 1
            try:
                if fault := await fault_of(http, request, outcome.answers):
                    outcome.faults.append(f"{request}: {fault}")
            except TimeoutError:
                outcome.given_up += 1

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    each_its_own = aiohttp.TCPConnector(force_close=True)
    patience = aiohttp.ClientTimeout(PATIENCE_S)
    async with (
        aiohttp.ClientSession(server.url, connector=each_its_own, headers=headers, timeout=patience) as http,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(AT_A_TIME):
            tasks.create_task(work())


async def _wait_for_normal(outcome: Onslaught, normal: list[asyncio.Task]) -> None:
    """Lets a slow engine answer the normal client often enough to compare, unless that client has failed."""
    async with asyncio.timeout(HANG_S):
        while outcome.normal < NORMAL and not any(task.done() for task in normal):
            await asyncio.sleep(0.1)


async def _resident_bytes(server: Generating) -> int:
    """Returns the resident memory of an engine that has at most the normal client's requests left."""
    async with asyncio.timeout(HANG_S):
        while True:
            process = (await server.contract()).process
            if process.running + process.waiting <= 2:
                return process.resident_bytes
            await asyncio.sleep(0.1)
