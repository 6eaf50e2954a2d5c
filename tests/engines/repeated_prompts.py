"""Checks a prompt that is repeated while weights change: no cached state may be used with the new weights."""

import asyncio

import aiohttp
import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import cancelling
from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings

ROUNDS = 3
REQUESTS = 24  # some come before the update, some while it is applied, some after it
TOKENS = 8


def are_answered_by_one_set_of_weights(url: str, model: str, token: str) -> None:
    """Raises GuaranteeError for a token that the weights of its label did not sample.

    A request from before the update may cross it, so it is compared only up to the end of its first span.
    """
    asyncio.run(_rounds(url, model, Settings(token=token)))


async def _rounds(url: str, model: str, settings: Settings) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        server = Server(http, url, settings.token)
        bench = Bench([server], Reference(model), settings, torch.float32, context=512)
        async with bench.new_run() as trainer:
            for round_ in range(ROUNDS):
                prompt = bench.reference.prompt(200, seed=round_)
                await server.complete(prompt, TOKENS)  # leaves its keys and values in the prefix cache
                version = trainer.version + 1
                arriving = [asyncio.create_task(_later(server, prompt, i)) for i in range(REQUESTS)]
                async with cancelling(arriving):
                    await trainer.publish(version, bench.weights(version), kv_cache="keep")
                    for sample in await asyncio.gather(*arriving):
                        label, _, end = sample.spans[0]
                        bench.compare(
                            sample,
                            bench.weights(label),
                            f"ask the same {len(prompt)} ids during an update",
                            upto=end,
                        )


async def _later(server: Server, prompt: list[int], place: int):
    await asyncio.sleep(0.002 * place)
    return await server.complete(prompt, TOKENS, temperature=1)
