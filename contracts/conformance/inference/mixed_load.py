"""Many requests in flight: short and long prompts, one or several choices, streamed or not.

The mix reveals a fault in one slot of a batch, in a long prompt or in one of several choices.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.timed_stream import TimedStream
from contracts.conformance.verdicts import GuaranteeError

LONG = 300  # tokens of a long prompt, if the context allows it
FILLING = 7  # index of the request that fills the context
SHORTEST = 26  # most tokens of a short prompt
CHOICES = 6  # choices of a request with several
APPEARS_WITHIN_S = 30.0
QUEUED_FOR_S = 0.5  # time with a constant number of running requests after which others count as queued


@dataclass
class InFlight:
    """One request in flight."""

    server: Server
    prompt: list[int]
    task: asyncio.Task[list[Sample]]
    stream: TimedStream | None = None
    had: int = 0  # tokens that were certainly sampled before the update was sent


@contextlib.asynccontextmanager
async def cancelling(tasks: list[asyncio.Task[Any]]) -> AsyncIterator[None]:
    """Cancels `tasks` at the end of the block, and waits until all have ended."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def mixed_load(bench: Bench, count: int, max_tokens: int) -> AsyncIterator[list[InFlight]]:
    """Runs `count` requests on each server, and yields while they are being generated.

    Each short one has a token by then, unless one has ended or some wait for slots. The end of the block
    cancels unfinished ones.
    """
    streams = "stream" in await bench.offered("capabilities")
    requests = []
    for server in bench.servers:
        limits = (await server.contract()).limits
        choices = min(CHOICES, limits.max_n) if limits else CHOICES
        requests += [start(bench, server, i, max_tokens, streams, choices) for i in range(count)]
    async with cancelling([request.task for request in requests]):
        for server in bench.servers:
            await _started(bench, server, [request for request in requests if request.server is server])
        yield requests


def long_prompt(bench: Bench) -> int:
    """Returns the length of a long prompt, in tokens."""
    return min(LONG, bench.context // 4)


def start(bench: Bench, server: Server, i: int, max_tokens: int, streams: bool, choices: int) -> InFlight:
    """Sends the i-th request of the mix."""
    prompt = bench.reference.prompt(_length(bench, i, max_tokens), seed=i)
    if streams and i % 2 == 1:
        stream = TimedStream(server, prompt, max_tokens, temperature=1)
        return InFlight(server, prompt, asyncio.create_task(_alone(stream)), stream)
    n = {"n": choices} if i % 8 == 2 and choices > 1 else {}
    asked = server.choices(prompt, max_tokens, temperature=1, **n)
    return InFlight(server, prompt, asyncio.create_task(asked))


def _length(bench: Bench, i: int, max_tokens: int) -> int:
    """Returns the length of the i-th prompt, in tokens."""
    if i == FILLING:
        return max(long_prompt(bench), bench.context - max_tokens)
    return long_prompt(bench) if i % 8 == 7 else 5 + 3 * (i % 8)


async def _alone(stream: TimedStream) -> list[Sample]:
    return [await stream.read()]


async def _started(bench: Bench, server: Server, requests: list[InFlight]) -> None:
    """Waits until all requests are being generated, or as many as the server has slots."""
    if not await side_by_side(server, [request.task for request in requests]):
        _record_tokens(requests, 0)
        return
    # When this request, which was sent last, has its token, the earlier short ones have theirs.
    await server.complete(bench.reference.prompt(4, seed=len(requests)), 1)
    _record_tokens(requests, 1)


def _record_tokens(requests: list[InFlight], at_least: int) -> None:
    for request in requests:
        request.had = len(request.stream.arrivals) if request.stream else 0
        if len(request.prompt) <= SHORTEST:
            request.had = max(request.had, at_least)


async def side_by_side(server: Server, tasks: Sequence[asyncio.Task[Any]]) -> bool:
    """Returns True if the server generates all requests at a time, and False if some wait for a slot."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + APPEARS_WITHIN_S
    since = loop.time()
    before = -1
    while True:
        process = (await server.contract()).process
        done = sum(task.done() for task in tasks)
        if process.running + done >= len(tasks):
            return True
        if process.running != before:
            before = process.running
            since = loop.time()
        queued = process.running > 0 and process.running + process.waiting + done >= len(tasks)
        if done or (queued and loop.time() - since > QUEUED_FOR_S):
            return False
        if loop.time() > deadline:
            raise GuaranteeError(
                f"/contract.process has {process.running} running, {process.waiting} waiting after "
                f"{APPEARS_WITHIN_S:g} s",
                f"{len(tasks)} requests that were sent together are generated, or wait for a slot",
                f"{server}: send {len(tasks)} long completions and look at GET /contract",
            )
        await asyncio.sleep(0.002)


async def some_wait(servers: Sequence[Server]) -> bool:
    """Returns True if requests wait for a slot on one of the servers."""
    return any([(await server.contract()).process.waiting for server in servers])
