"""Long rollouts that run across several updates of one server."""

import asyncio

import aiohttp

from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.trainer_peer import TrainerPeer
from tests.limits import HANG_S


async def rollouts_across(url: str, token: str, reference: Reference, updates: int) -> list[Sample]:
    async with aiohttp.ClientSession() as http:
        server = Server(http, url, token)
        trainer = TrainerPeer([server], reference.tied, Settings(token=token, timeout_s=HANG_S))
        try:
            await trainer.join()
            await trainer.publish(1, reference.weights(1))
            prompts = [reference.prompt(5 + i, seed=i) for i in range(8)]
            tasks = [
                asyncio.create_task(server.complete(p, 1500, temperature=1, ignore_eos=True)) for p in prompts
            ]
            while (await server.contract()).process.running < len(tasks):
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0.002)
            for version in range(2, 2 + updates):
                receive = "staged" if version % 2 else "paused"
                await trainer.publish(
                    version, reference.weights(version), kv_cache="recompute", receive=receive
                )
            return await asyncio.gather(*tasks)
        finally:
            trainer.leave()
