"""Requests in flight, which run during an update and must complete."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.mixed_load import (
    InFlight,
    long_prompt,
    mixed_load,
    side_by_side,
)
from contracts.conformance.inference.mixed_load import cancelling as cancelling
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

FIRST_TRY = 96  # tokens of each request in the first attempt
FEW = 8  # requests in flight per server if their number matters little
TOGETHER = 32  # requests in flight per server if their number matters
MANY = 96  # most requests in flight per server
PROMPTS = range(5, 27, 3)  # tokens of the prompts of requests in flight
LONGEST_PROMPT = max(PROMPTS)

Tasks = list[tuple[Server, asyncio.Task[Sample]]]


@contextlib.asynccontextmanager
async def in_flight(
    bench: Bench,
    count: int,
    max_tokens: int,
    in_lines: bool = False,
    temperature: float = 1.0,
    fields_of: Callable[[int], dict[str, Any]] = lambda number: {},
) -> AsyncIterator[Tasks]:
    """Runs `count` completions on each server, and yields while they are being generated.

    Each has a token by then, unless one has ended or some wait for slots. The end of the block cancels
    unfinished ones. in_lines: every second request is as_completed. fields_of: returns further fields of
    each request of a server, by its number.
    """
    prompts = [bench.reference.prompt(PROMPTS[i % len(PROMPTS)], seed=i) for i in range(count)]
    tasks: Tasks = []
    for server in bench.servers:
        for i, prompt in enumerate(prompts):
            lines = in_lines and i % 2 == 1
            fields: dict[str, Any] = {"temperature": temperature} | fields_of(i)
            asked = server.complete(prompt, max_tokens, in_lines=lines, **fields)
            tasks.append((server, asyncio.create_task(asked)))
    async with cancelling([task for _, task in tasks]):
        for server in bench.servers:
            if await side_by_side(server, [task for at, task in tasks if at is server]):
                # When this request, which was sent last, has its token, the others have theirs.
                await server.complete(bench.reference.prompt(4, seed=count), 1)
        yield tasks


async def complete_across(
    bench: Bench,
    trainer: TrainerPeer,
    update: Callable[[], Awaitable[object]],
    check: Callable[[Server, Sample], float],
    count: int = FEW,
) -> tuple[list[Sample], float]:
    """Runs completions while `update()` publishes. Returns them, and the largest error returned by `check`.

    The first attempt has `count` short requests. Further attempts have longer and then more requests, until
    some on every server outlast `update()`. Each must complete, keep its earlier tokens and pass `check`.
    Requests without a token before the update may begin with any version, and are not passed to `check`.
    """
    max_tokens = FIRST_TRY
    worst = 0.0
    longest = bench.context - long_prompt(bench) - 8
    while True:
        before = trainer.version
        max_tokens = min(max_tokens, longest)
        async with mixed_load(bench, count, max_tokens) as requests:
            await update()
            found = [(request, sample) for request in requests for sample in await request.task]
        for request, sample in found:
            check_finished(bench, request.server, sample, max_tokens)
            not_restarted(request, sample, before)
        began = [(request, sample) for request, sample in found if sample.spans[0][0] == before]
        for request, sample in began:
            worst = max(worst, check(request.server, sample))
        crossed = {request.server for request, sample in began if len(sample.spans) > 1}
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
    """Checks that the request ended at its length or by end-of-sequence."""
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


def not_restarted(request: InFlight, sample: Sample, version: int) -> None:
    """Checks that the request still begins with the tokens it had when `version` was live."""
    label, start, end = sample.spans[0]
    had = min(request.had, len(sample.token_ids))
    if had and (label != version or end < had):
        raise GuaranteeError(
            f"a request that had tokens of version {version} when the next one was sent has the spans "
            f"{sample.spans}",
            f"its first {had} tokens stay, labelled {version}: it is neither restarted nor relabelled",
            f"{request.server}: complete {request.prompt}; once it runs, publish version {version + 1}",
        )
