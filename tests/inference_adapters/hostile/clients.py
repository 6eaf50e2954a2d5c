"""Sends many hostile requests at a time, next to a client that only generates, and checks the responses."""

import asyncio
import itertools
import os
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from tests.inference_adapters.hostile.answers import fault_of
from tests.inference_adapters.hostile.mutations import mutations
from tests.inference_adapters.hostile.normal_client import generate
from tests.inference_adapters.hostile.other_routes import to_other_routes
from tests.inference_adapters.servers import Server
from tests.limits import HANG_S

AT_A_TIME = 16
NORMAL = 11  # responses to the normal client, before it is stopped
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

    def count_normal(self) -> None:
        self.normal += 1


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
    sent = itertools.chain(to_other_routes(model, token), mutations(model, token, seed))
    requests = itertools.islice(sent, count)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(
        server.url, headers=headers, timeout=aiohttp.ClientTimeout(HANG_S)
    ) as http:
        normal = [
            asyncio.create_task(generate(http, model, outcome.count_normal, stream))
            for stream in (False, True)
        ]
        try:
            # After these, one-time growth and caching are complete.
            await _send_all(server, itertools.islice(requests, min(count // 2, 450)), outcome)
            before = await _resident_bytes(http)
            await _send_all(server, requests, outcome)
            await _wait_for_normal(outcome, normal)
        finally:
            for task in normal:
                task.cancel()
            ended = await asyncio.gather(*normal, return_exceptions=True)
        outcome.grown_bytes = await _resident_bytes(http) - before
    outcome.faults += [repr(end) for end in ended if not isinstance(end, asyncio.CancelledError)]
    return outcome


async def _send_all(server: Server, requests, outcome: Onslaught) -> None:
    async def work() -> None:
        for request in requests:
            if server.process.poll() is not None:
                raise AssertionError(
                    f"the server ended with status {server.process.returncode}: {outcome.faults}"
                )
            outcome.sent += 1
            try:
                if fault := await fault_of(server.url, request, outcome.answers):
                    outcome.faults.append(f"{request.name}: {fault}")
            except TimeoutError:
                outcome.given_up += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_A_TIME):
            tasks.create_task(work())


async def _wait_for_normal(outcome: Onslaught, normal: list[asyncio.Task]) -> None:
    """Lets a slow engine answer the normal client often enough to compare, unless that client has failed."""
    async with asyncio.timeout(HANG_S):
        while outcome.normal < NORMAL and not any(task.done() for task in normal):
            await asyncio.sleep(0.1)


async def _resident_bytes(http: aiohttp.ClientSession) -> int:
    """Returns the resident memory of an engine that has at most the normal client's requests left."""
    async with asyncio.timeout(HANG_S):
        while True:
            async with http.get("/contract") as answer:
                process = (await answer.json())["process"]
            if process["running"] + process["waiting"] <= 2:
                return process["resident_bytes"]
            await asyncio.sleep(0.1)
