"""Measures whether the work for disconnected clients stops, independently of `/contract`. G11 calls it.

Times a small completion on the idle server, during a load, and after the load's clients have disconnected. If
the work continues, the last time is like the second.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.verdicts import GuaranteeError

PROBE_TOKENS = 24
PROBES = 3  # measurements, of which the fastest counts
ATTEMPTS = 3  # because a busy machine may be slow once
CHOICES = 4
CONNECTIONS = 32
VISIBLE = 2.0  # factor by which a load must slow the server to be noticeable
APPEAR_S = 10.0
QUIET_S = 20.0
PAUSE_S = 3.0  # after a measurement that a busy machine may have caused


@dataclass(frozen=True)
class Speeds:
    """The seconds of the small completion in each state."""

    idle: float
    loaded: float
    after: float

    @property
    def is_noticeable(self) -> bool:
        """True if the load slowed the server enough that continued work would be noticed."""
        return self.loaded >= VISIBLE * self.idle

    @property
    def stopped(self) -> bool:
        """True if the server is closer to its idle speed than to its speed under load."""
        return not self.is_noticeable or self.after <= (self.idle * self.loaded) ** 0.5


async def work_stops(bench: Bench, server: Server) -> Speeds:
    """Checks that a load with several choices per connection ends when its connections are closed."""
    await wait_until_idle(server)
    idle = await probe(bench, server)
    for attempt in range(ATTEMPTS):
        async with disconnecting(bench, server, CONNECTIONS, CHOICES * 2**attempt):
            loaded = await probe(bench, server, limit_s=10 * idle + 1)
        await wait_until_idle(server)
        speeds = Speeds(idle, loaded, await probe(bench, server, limit_s=10 * idle + 1))
        if speeds.is_noticeable and speeds.stopped:
            return speeds
        if not speeds.stopped:
            idle = await _later(bench, server, speeds)
    if speeds.stopped:
        return speeds
    raise GuaranteeError(
        f"{PROBE_TOKENS} tokens take {speeds.after:.3f} s after the clients of {CONNECTIONS} requests left, "
        f"{speeds.loaded:.3f} s beside those requests and {speeds.idle:.3f} s without",
        "about the time that the idle server takes: a closed connection ends the work for all its choices",
        f"{server}: send {CONNECTIONS} completions of n {CHOICES}, hang up, and time one of {PROBE_TOKENS}",
    )


async def _later(bench: Bench, server: Server, speeds: Speeds) -> float:
    """Measures the idle server again, because the machine may be busier now.

    Waits first until work that continues should have ended. Returns the earlier seconds if it has not ended.
    """
    await asyncio.sleep(PAUSE_S)
    idle = await probe(bench, server, limit_s=speeds.loaded)
    return idle if VISIBLE * idle <= speeds.loaded else speeds.idle


@asynccontextmanager
async def disconnecting(
    bench: Bench, server: Server, connections: int, choices: int
) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Runs long requests, some streamed if possible, and closes their connections at the end of the block.

    Raises the error of a refused request.
    """
    contract = await server.contract()
    choices = min(choices, contract.limits.max_n if contract.limits else choices)
    tokens = min(bench.context - 16, 8000)
    body = {"max_tokens": tokens, "temperature": 1 if choices > 1 else 0, "n": choices}
    tasks = []
    for seed in range(connections):
        streamed = seed % 2 == 1 and "stream" in contract.capabilities
        ask = server.stream if streamed else server.generate
        prompt = bench.reference.prompt(8, seed=seed)
        tasks.append(asyncio.create_task(ask("/v1/completions", body | {"prompt": prompt})))
    async with cancelling(tasks):

        async def there() -> bool:
            return await server.unfinished() >= connections or any(task.done() for task in tasks)

        await poll(there, within_s=APPEAR_S)
        yield tasks
        ended = [task for task in tasks if task.done()]
    for task in ended:
        task.result()


async def probe(bench: Bench, server: Server, limit_s: float | None = None) -> float:
    """Returns the seconds of the fastest of PROBES small completions, at most `limit_s`."""
    prompt = bench.reference.prompt(8, seed=77)
    best = limit_s
    for _ in range(PROBES):
        asked = asyncio.create_task(server.complete(prompt, PROBE_TOKENS, temperature=0))
        started = time.monotonic()
        async with cancelling([asked]):
            done, _ = await asyncio.wait([asked], timeout=limit_s)
            if done:
                asked.result()
                took = time.monotonic() - started
                best = took if best is None else min(best, took)
    assert best is not None, "without a limit every probe ends"
    return best


async def wait_until_idle(server: Server) -> None:
    """Waits until the server reports no request. Raises GuaranteeError after QUIET_S."""

    async def idle() -> bool:
        return await server.unfinished() == 0

    if await poll(idle, within_s=QUIET_S) is None:
        raise GuaranteeError(
            f"{await server.unfinished()} requests are there {QUIET_S:g} s after all clients left",
            "/contract.process shows none running and none waiting",
            f"{server}: send completions, hang up, and look at GET /contract",
        )
