"""Requests in flight: started, kept across an update, and whole when they end."""

import asyncio
from collections.abc import Awaitable, Callable

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_end import TrainerEnd
from contracts.conformance.verdicts import Broken

COUNT = 6  # requests in flight, a server
FIRST_TRY = 200  # tokens each


async def started(bench: Bench, server: Server, count: int, max_tokens: int) -> list[asyncio.Task[Sample]]:
    """Long completions that are being generated: each has sampled at least one token."""
    prompts = [bench.reference.prompt(5 + 3 * i, seed=i) for i in range(count)]
    tasks = [asyncio.create_task(server.complete(p, max_tokens, temperature=1)) for p in prompts]
    if count == 1:
        await server.wait_running(1)
    # It came last, so when it has its token the others have theirs.
    await server.complete(bench.reference.prompt(4, seed=count), 1)
    return tasks


async def across(
    bench: Bench,
    trainer: TrainerEnd,
    update: Callable[[], Awaitable[object]],
    check: Callable[[Server, Sample], float],
) -> tuple[list[Sample], float]:
    """Completions that are in flight while `update()` publishes; longer ones, and `update()` again, until
    some of them, on every server, live to see its end. Each is whole, keeps the tokens that it had, and
    passes `check`. With them, the largest distance in nats that `check` gave."""
    max_tokens, worst = FIRST_TRY, 0.0
    longest = bench.reference.context - 5 - 3 * COUNT
    while True:
        before, max_tokens = trainer.version, min(max_tokens, longest)
        tasks = [
            (server, task)
            for server in bench.servers
            for task in await started(bench, server, COUNT, max_tokens)
        ]
        await update()
        found = [(server, await task) for server, task in tasks]
        for server, sample in found:
            whole(bench, server, sample, max_tokens)
            _not_restarted(server, sample, before)
            worst = max(worst, check(server, sample))
        crossed = {server for server, sample in found if len(sample.spans) > 1}
        if len(crossed) == len(bench.servers):
            return [sample for _, sample in found], worst
        if max_tokens == longest:
            raise Broken(
                f"none of {COUNT} requests of {longest} tokens crossed the update",
                "generation goes on through an update: a running request has tokens of both versions",
                f"keep {COUNT} requests of {longest} tokens running and publish a version (a very fast "
                "server needs a model with a longer context)",
            )
        max_tokens *= 4


def whole(bench: Bench, server: Server, sample: Sample, max_tokens: int) -> None:
    """It ended by itself: by its length, or by end-of-sequence."""
    tokens, last = len(sample.token_ids), sample.token_ids[-1:]
    if sample.finish_reason == "length" and tokens == max_tokens:
        return
    if sample.finish_reason == "stop" and last and last[0] in bench.reference.ends:
        return
    raise Broken(
        f"{server}: a request of {max_tokens} tokens ended with {sample.finish_reason!r} after {tokens}",
        f"`length` after {max_tokens} tokens, or `stop` with end-of-sequence as its last id",
        f"complete {sample.prompt_token_ids} with max_tokens {max_tokens} while weights are updated",
    )


def _not_restarted(server: Server, sample: Sample, version: int) -> None:
    """It had tokens when `version` was the live one."""
    if sample.spans[0][0] != version:
        raise Broken(
            f"a request that had tokens of version {version} when the next one was sent has the spans "
            f"{sample.spans}",
            f"its first tokens stay, labelled {version}: it is neither restarted nor relabelled",
            f"{server}: complete {sample.prompt_token_ids}; once it runs, publish version {version + 1}",
        )
