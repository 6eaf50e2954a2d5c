"""G3: a new request after `live` never uses keys and values of older weights."""

import asyncio

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer


async def stale_cache(bench: Bench) -> str:
    """Completes the same long prompt before, during and after an update, and checks the later completions.

    The prompt is repeated at once, and again after the request in flight has ended and freed its cache
    blocks.
    """
    length = min(256, bench.context // 2)
    prompt = bench.reference.prompt(length)
    longer = prompt[: length // 2] + bench.reference.prompt(length // 2, seed=1)
    receives = await bench.receive_modes()
    modes = [(kv, receive) for kv in await bench.offered("kv_cache") for receive in receives]
    worst = 0.0
    async with bench.new_run() as trainer:
        for kv_cache, receive in modes:
            worst = max(worst, await _across_one(bench, trainer, [prompt, longer], kv_cache, receive))
    tried = ", ".join(f"{kv} {receive}" for kv, receive in modes)
    return f"prompts of {length} tokens again after updates ({tried}): off by {worst:.0e}"


async def _across_one(
    bench: Bench, trainer: TrainerPeer, prompts: list[list[int]], kv_cache: str, receive: str
) -> float:
    version = trainer.version + 1
    for server in bench.servers:
        for _ in range(2):  # the second fills the cache blocks that the first did not
            await server.complete(prompts[0], SHORT)
    max_tokens = min(400, bench.context - len(prompts[0]))
    held = [asyncio.create_task(server.complete(prompts[0], max_tokens)) for server in bench.servers]
    async with cancelling(held):
        for server, task in zip(bench.servers, held, strict=True):
            while not task.done() and (await server.contract()).process.running < 1:
                await asyncio.sleep(0.002)
        await trainer.publish(version, bench.weights(version), kv_cache=kv_cache, receive=receive)
        worst = await _again(bench, version, prompts, f"kv_cache {kv_cache}, {receive}")
        await asyncio.gather(*held)
        return max(worst, await _again(bench, version, prompts, f"kv_cache {kv_cache}, {receive}, later"))


async def _again(bench: Bench, version: int, prompts: list[list[int]], how: str) -> float:
    return max([await _one(bench, server, version, p, how) for server in bench.servers for p in prompts])


async def _one(bench: Bench, server: Server, version: int, prompt: list[int], how: str) -> float:
    sample = await server.complete(prompt, SHORT, temperature=0)
    reproduce = (
        f"{server}: complete a prompt of {len(prompt)} tokens, publish version {version} ({how}), complete a "
        "prompt that begins alike"
    )
    bench.check_greedy(sample, bench.weights(version), reproduce)
    return bench.compare(sample, bench.weights(version), reproduce)
