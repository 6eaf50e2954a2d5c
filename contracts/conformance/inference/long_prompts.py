"""Long prompts that are processed, or wait, when weights change with `recompute`. G2 calls it.

A server that processes prompts in chunks has keys and values of requests that have no tokens yet.
"""

import asyncio

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.crossing import Crossing
from contracts.conformance.inference.load import check_finished
from contracts.conformance.inference.mixed_load import cancelling
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.trainer_peer import TrainerPeer

TOKENS = 8  # tokens of each completion
FEW = 8  # long prompts per server in the first attempt
MOST = 64  # long prompts per server at most
LONGEST = 1024  # tokens of a prompt, if the context allows it
PREFIX = 64  # tokens that all prompts share
PARTS = (0.4, 0.8)  # shares of the time to process all prompts after which the weights should change


async def reading_long_prompts(bench: Bench, trainer: TrainerPeer) -> float:
    """Returns the largest error, in nats, of completions whose prompts were processed during an update.

    Tries several moments, because servers process prompts one after another or all at once.
    """
    length = min(LONGEST, bench.context - TOKENS)
    update_s, prompt_s = await _durations(bench, trainer, length)
    count = min(MOST, max(FEW, round(4 * update_s / prompt_s)))
    reading_s = await _reading_s(bench, _prompts(bench, count, length, 0))
    worst = 0.0
    for turn, part in enumerate(PARTS, 1):
        # The server swaps its weights near the end of the update.
        wait_s = max(0.0, part * reading_s - update_s)
        prompts = _prompts(bench, count, length, turn)
        worst = max(worst, await _update_after(bench, trainer, prompts, wait_s))
    return worst


def _prompts(bench: Bench, count: int, length: int, turn: int) -> list[list[int]]:
    """Returns prompts of different lengths, which share only a prefix, also with other turns."""
    shared = bench.reference.prompt(PREFIX, seed=1)
    return [
        shared + bench.reference.prompt(length - PREFIX - 16 * (i % 4), seed=100 + MOST * turn + i)
        for i in range(count)
    ]


async def _update_after(bench: Bench, trainer: TrainerPeer, prompts: list[list[int]], wait_s: float) -> float:
    """Publishes a version `wait_s` after the prompts were sent. Returns the largest error, in nats."""
    version = trainer.version + 1
    crossing = Crossing(bench, {version: "recompute"})
    where = (
        f"send {len(prompts)} prompts of {len(prompts[0])} tokens "
        f"and publish version {version} with kv_cache recompute"
    )
    tasks = [
        (server, asyncio.create_task(server.complete(prompt, TOKENS, temperature=1)))
        for server in bench.servers
        for prompt in prompts
    ]
    async with cancelling([task for _, task in tasks]):
        await asyncio.sleep(wait_s)
        await trainer.publish(version, bench.weights(version), kv_cache="recompute")
        found: list[Sample] = []
        for server, task in tasks:
            sample = await task
            check_finished(bench, server, sample, TOKENS)
            found.append(sample)
    return max([crossing.check(sample, where) for sample in found])


async def _reading_s(bench: Bench, prompts: list[list[int]]) -> float:
    """Returns the seconds in which idle servers process all prompts."""
    started = asyncio.get_running_loop().time()
    await asyncio.gather(*(server.complete(prompt, 1) for server in bench.servers for prompt in prompts))
    return asyncio.get_running_loop().time() - started


async def _durations(bench: Bench, trainer: TrainerPeer, length: int) -> tuple[float, float]:
    """Returns the seconds of an update, and the seconds in which an idle server processes a long prompt."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    version = trainer.version + 1
    await trainer.publish(version, bench.weights(version), kv_cache="recompute")
    updated = loop.time()
    await bench.servers[0].complete(bench.reference.prompt(length, seed=99), 1)
    return updated - started, max(0.001, loop.time() - updated)
