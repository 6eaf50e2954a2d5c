"""G3: a new request after `live` never meets keys and values of older weights."""

import asyncio

from contracts.conformance.inference.bench import SHORT, Bench


async def stale_cache(bench: Bench) -> str:
    """The same long prompt is completed before the update, is in flight during it, and comes again."""
    length = min(256, bench.reference.context // 2)
    prompt = bench.reference.prompt(length)
    longer = prompt[: length // 2] + bench.reference.prompt(length // 2, seed=1)
    worst, modes = 0.0, await bench.offered("kv_cache")
    async with bench.new_run() as trainer:
        for kv_cache in modes:
            version = trainer.version + 1
            weights = bench.reference.weights(version)
            for server in bench.servers:
                for _ in range(2):  # the second fills whatever the first did not
                    await server.complete(prompt, SHORT)
            held = [
                asyncio.create_task(server.complete(prompt, min(400, bench.reference.context - length)))
                for server in bench.servers
            ]
            for server in bench.servers:
                await server.wait_running(1)
            await trainer.publish(version, weights, kv_cache=kv_cache)
            for server in bench.servers:
                for asked in (prompt, longer):
                    sample = await server.complete(asked, SHORT, temperature=0)
                    reproduce = (
                        f"{server}: complete a prompt of {length} tokens, publish version {version} with "
                        f"kv_cache {kv_cache}, complete a prompt that begins alike"
                    )
                    worst = max(worst, bench.compare(sample, weights, reproduce))
                    bench.same_greedy(sample, weights, reproduce)
            await asyncio.gather(*held)
    tried = f"{len(modes)} updates ({', '.join(modes)})"
    return f"a prompt of {length} tokens again after {tried}: off by {worst:.0e}"
