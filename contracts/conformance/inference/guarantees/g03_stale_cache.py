"""G3: a new request after `live` never uses keys and values of older weights."""

import asyncio
import itertools

from contracts.conformance.inference.bench import FEW, Bench
from contracts.conformance.inference.buckets import bucket_bytes_for, packed
from contracts.conformance.inference.mixed_load import cancelling
from contracts.conformance.inference.repeated_requests import LONG, MIDDLE, Repeated, completion, repeated
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer

HELD = 200  # tokens of the requests that run during the update
LANES = 2  # such requests at a time, of different lengths, so that one of them always runs
TRIES = 5  # updates of a mode, until one meets a running request of every server
BETWEEN = 300  # distinct prompts that evict the first ones to a slower cache, if there is one
OTHER = 2000  # added to a version to get the seed of other content for it


async def updates(bench: Bench) -> str:
    """Sends the same requests before, during and after updates, and checks the later ones."""
    receives = await bench.receive_modes()
    modes = [(kv, receive) for kv in await bench.offered("kv_cache") for receive in receives]
    update = _Update(bench, await bench.run())
    found = {f"{kv} {receive}": await update.crossed(kv, receive) for kv, receive in modes}
    worst = max(error for error, _ in found.values())
    unmet = [mode for mode, (_, has_crossed) in found.items() if not has_crossed]
    not_met = f"; no request ran during the updates of {', '.join(unmet)}" if unmet else ""
    return (
        f"the same prompts, of up to {bench.context} tokens, again after updates ({', '.join(found)}) are "
        f"off by {worst:.0e}{not_met}"
    )


async def takeover(bench: Bench) -> str:
    """Sends the same requests before and after another run takes over, and checks the later ones."""
    version = (await bench.run()).version
    bench.end_run()
    return f"after a takeover by {await _taken_over(bench, version):.0e}"


PARTS = {
    "updates": updates,
    "takeover": takeover,
}


class _Update:
    def __init__(self, bench: Bench, trainer: TrainerPeer):
        self.bench = bench
        self.trainer = trainer
        self.filled = False
        self.attempts = itertools.count(1)

    async def crossed(self, kv_cache: str, receive: str) -> tuple[float, bool]:
        """Makes up to `TRIES` updates, until one has met a running request of every server.

        Returns the largest error, in nats, and whether one has.
        """
        worst = 0.0
        has_crossed = False
        for _ in range(TRIES):
            error, has_crossed = await self.across(kv_cache, receive)
            worst = max(worst, error)
            if has_crossed:
                break
        return worst, has_crossed

    async def across(self, kv_cache: str, receive: str) -> tuple[float, bool]:
        """Returns the largest error, in nats, of requests sent before an update and again after it.

        Also returns whether a request of every server ran during the update.
        """
        bench = self.bench
        version = self.trainer.version + 1
        how = f"kv_cache {kv_cache}, {receive}"
        weights = bench.weights(version)
        requests = await repeated(bench, LONG if self.filled else bench.context)
        self.filled = True
        await requests.ask()
        await requests.ask()  # the second time fills cache blocks that the first did not
        if bench.settings.thorough:
            await self._fill()
        ended = asyncio.Event()
        held = [
            (server, asyncio.create_task(self._across(server, version, lane, ended)))
            for server in bench.servers
            for lane in range(LANES)
        ]
        async with cancelling([task for _, task in held]):
            for server, task in held:
                while not task.done() and (await server.contract()).process.running < 1:
                    await asyncio.sleep(0.002)
            meanwhile = await self._publish(kv_cache, receive)
            ended.set()
            worst = await requests.check(weights, version, how)
            worst = max(worst, await meanwhile.check(weights, version, f"{how}, sent during it"))
            found = [(server, await task) for server, task in held]
        for server, sample in found:
            worst = max(worst, await self._asked_again(server, sample, version, how))
        worst = max(worst, await requests.prefixes().check(weights, version, f"{how}, later"))
        crossed = {server for server, sample in found if set(sample.versions) > {version}}
        return worst, len(crossed) == len(bench.servers)

    async def _across(self, server: Server, version: int, lane: int, ended: asyncio.Event) -> Sample:
        """Sends requests in turn. Returns the first that ends with `version` or after `ended`.

        No two requests of a run share a prompt: a server that has cached one would have nothing to compute.
        """
        context = self.bench.context
        while True:
            seed = -(LANES * next(self.attempts) + lane)
            prompt = self.bench.reference.prompt(min(MIDDLE, context // 4), seed=seed)
            tokens = min(HELD, context // 2) * (3 - lane) // 3
            sample = await server.complete(prompt, tokens)
            if ended.is_set() or max(sample.versions, default=version) >= version:
                break
        return sample

    async def _publish(self, kv_cache: str, receive: str) -> Repeated:
        """Publishes the next version. Returns the requests that were sent while it was received."""
        bench = self.bench
        version = self.trainer.version + 1
        weights = bench.weights(version)
        size = bucket_bytes_for(weights, 4)
        first, *rest = buckets = packed(weights, size)
        prompt = bench.reference.prompt(min(MIDDLE, bench.context // 2), seed=MIDDLE + version)
        requests = Repeated(bench, {"a prompt that came during the update": completion(prompt)}, [])
        update = self.trainer.update_request(
            version, weights, kv_cache=kv_cache, receive=receive, bucket_bytes=size
        )
        await self.trainer.request_update(update)
        await self.trainer.send([first])
        asked = asyncio.create_task(requests.ask())
        async with cancelling([asked]):
            if receive == "staged":
                await asyncio.wait([asked], timeout=0.5 * bench.settings.timeout_s)
            await self.trainer.send(rest)
            total = sum(bucket.nbytes for bucket in buckets)
            await self.trainer.wait_until_live(version, total, f"publish ({kv_cache}, {receive})")
            await asked
        return requests

    async def _asked_again(self, server: Server, sample: Sample, version: int, how: str) -> float:
        """Returns the largest error, in nats, of a prompt whose response crossed the update, asked again.

        Then the response is continued. After many tokens, old states may have little effect.
        """
        prompt = list(sample.prompt_token_ids)
        worst = 0.0
        for turn, doing in (
            (prompt, "ask its prompt again"),
            ([*prompt, *sample.token_ids], "continue its answer"),
        ):
            reproduce = f"{server}: publish version {version} ({how}) while a request runs, {doing}"
            again = await server.complete(turn[: self.bench.context - FEW], FEW)
            self.bench.check_label(again, version, reproduce)
            worst = max(worst, self.bench.compare(again, self.bench.weights(version), reproduce))
        return worst

    async def _fill(self) -> None:
        prompts = [self.bench.reference.prompt(MIDDLE, seed=OTHER + i) for i in range(BETWEEN)]
        for server in self.bench.servers:
            await asyncio.gather(*(server.complete(prompt, 1) for prompt in prompts))


async def _taken_over(bench: Bench, version: int) -> float:
    """Returns the largest error, in nats, after another run publishes the same version with other content."""
    requests = await repeated(bench, LONG)
    await requests.ask()
    trainer = bench.trainer()
    weights = bench.weights(OTHER + version)
    try:
        await trainer.join()
        await trainer.publish(version, weights)
        return await requests.check(weights, version, "of another run, with the number of the live one")
    finally:
        trainer.leave()
