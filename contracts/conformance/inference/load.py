"""Requests in flight: they are started, kept running across an update, and must be complete at the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

FIRST_TRY = 200  # tokens of each request in the first attempt
FEW = 6  # requests in flight per server, at first
MANY = 96  # requests in flight per server, at most
APPEARS_WITHIN_S = 30.0

Tasks = list[tuple[Server, asyncio.Task[Sample]]]


@contextlib.asynccontextmanager
async def in_flight(bench: Bench, count: int, max_tokens: int, stream: bool = False) -> AsyncIterator[Tasks]:
    """Runs `count` long completions on each server, and yields once each has a token or has ended.

    Those that still run at the end of the block are cancelled.
    """
    prompts = [bench.reference.prompt(5 + 3 * (i % 8), seed=i) for i in range(count)]
    tasks: Tasks = [
        (
            server,
            asyncio.create_task(server.complete(prompt, max_tokens, stream and i % 2 == 1, temperature=1)),
        )
        for server in bench.servers
        for i, prompt in enumerate(prompts)
    ]
    async with cancelling([task for _, task in tasks]):
        for server in bench.servers:
            await _running(server, [task for at, task in tasks if at is server])
            # This request is the last one, so once it has its token the others have theirs.
            await server.complete(bench.reference.prompt(4, seed=count), 1)
        yield tasks


@contextlib.asynccontextmanager
async def cancelling(tasks: list[asyncio.Task[Any]]) -> AsyncIterator[None]:
    """Cancels `tasks` at the end of the block, and waits until all of them have ended."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _running(server: Server, tasks: list[asyncio.Task[Sample]]) -> None:
    """Waits until all requests are generated at the same time, or the first has ended."""
    deadline = asyncio.get_running_loop().time() + APPEARS_WITHIN_S
    while not any(task.done() for task in tasks):
        running = (await server.contract()).process.running
        if running >= len(tasks):
            return
        if asyncio.get_running_loop().time() > deadline:
            raise GuaranteeError(
                f"/contract.process.running is {running} after {APPEARS_WITHIN_S:g} s",
                f"{len(tasks)} requests that were sent together are generated side by side",
                f"{server}: send {len(tasks)} long completions and look at GET /contract",
            )
        await asyncio.sleep(0.002)


async def complete_across(
    bench: Bench,
    trainer: TrainerPeer,
    update: Callable[[], Awaitable[object]],
    check: Callable[[Server, Sample], float],
) -> tuple[list[Sample], float]:
    """Runs completions while `update()` publishes, and returns them with the largest error that `check` gave.

    The requests become longer, then more numerous, and `update()` is called again, until some on every server
    outlast it. Each must be complete, keep the tokens that it had, and pass `check`. If streams are offered,
    every other request is one.
    """
    streams = "stream" in await bench.offered("capabilities")
    count = FEW
    max_tokens = FIRST_TRY
    worst = 0.0
    longest = bench.context - 32
    while True:
        before = trainer.version
        max_tokens = min(max_tokens, longest)
        async with in_flight(bench, count, max_tokens, streams) as tasks:
            await update()
            found = [(server, await task) for server, task in tasks]
        for server, sample in found:
            check_finished(bench, server, sample, max_tokens)
            _not_restarted(server, sample, before)
            worst = max(worst, check(server, sample))
        crossed = {server for server, sample in found if len(sample.spans) > 1}
        if len(crossed) == len(bench.servers):
            return [sample for _, sample in found], worst
        if max_tokens == longest and count > MANY:
            raise GuaranteeError(
                f"none of {count} requests of {longest} tokens crossed the update",
                "generation goes on through an update: a running request has tokens of both versions",
                f"keep {count} requests of {longest} tokens running and publish a version (a very fast "
                "server needs a model with a longer context)",
            )
        if max_tokens == longest:
            count *= 4
        max_tokens *= 4


def check_finished(bench: Bench, server: Server, sample: Sample, max_tokens: int) -> None:
    """Checks that the request ended by itself: at its length, or by end-of-sequence."""
    tokens = len(sample.token_ids)
    last = sample.token_ids[-1:]
    if sample.finish_reason == "length" and tokens == max_tokens:
        return
    if sample.finish_reason == "stop" and last and last[0] in bench.reference.ends:
        return
    raise GuaranteeError(
        f"{server}: a request of {max_tokens} tokens ended with {sample.finish_reason!r} after {tokens}",
        f"`length` after {max_tokens} tokens, or `stop` with end-of-sequence as its last id",
        f"complete {sample.prompt_token_ids} with max_tokens {max_tokens} while weights are updated",
    )


def _not_restarted(server: Server, sample: Sample, version: int) -> None:
    """Checks that the first tokens of the request are those it had when `version` was live."""
    if sample.spans[0][0] != version:
        raise GuaranteeError(
            f"a request that had tokens of version {version} when the next one was sent has the spans "
            f"{sample.spans}",
            f"its first tokens stay, labelled {version}: it is neither restarted nor relabelled",
            f"{server}: complete {sample.prompt_token_ids}; once it runs, publish version {version + 1}",
        )
