"""SmolLM2's server sleeps fifty times, and gives its memory back each time."""

import asyncio

import aiohttp
import pytest
import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.sleeps import put_to_sleep
from extensions.real_model.published import PUBLISHED
from inference_adapters.transformers.batching import PAGE_TOKENS
from tests.inference_adapters.servers import serving, wait_ready
from tests.limits import HANG_S

pytestmark = pytest.mark.long

CYCLES = 50
BLOCKS = 64
SHARE = 0.9  # of the bytes of weights, and of keys and values, by which resident memory must fall
MIB = 2**20


def test_memory_is_given_back_the_first_and_the_last_time():
    model = str(PUBLISHED["smollm2"].directory)
    options = ("--model", model, "--num-blocks", str(BLOCKS), "--max-batch-tokens", "512")
    with serving("inference_adapters.transformers", *options) as server:
        wait_ready(server.url)
        found = asyncio.run(_sleeps(server.url, Reference(model)))
    for released, fell, _ in (found[0], found[-1]):
        assert min(released, fell) >= SHARE * _counted(model)
    assert found[-1][2] <= found[0][2] + 64 * MIB
    print(f"fell by {found[0][1] / MIB:.0f} and {found[-1][1] / MIB:.0f} MiB", found[0], found[-1])


def _counted(model: str) -> int:
    """Returns the bytes of float32 weights, and of the keys and values of all blocks."""
    config = Reference(model).model.config
    values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    weights = sum(p.numel() for p in Reference(model).model.parameters())
    return 4 * (weights + BLOCKS * PAGE_TOKENS * values)


async def _sleeps(url: str, reference: Reference) -> list[tuple[int, int, int]]:
    """Returns of each sleep: the released bytes, by how much memory fell, and what was left."""
    found = []
    async with aiohttp.ClientSession() as http:
        server = Server(http, url, None)
        settings = Settings(timeout_s=HANG_S)
        bench = Bench([server], reference, settings, torch.float32, BLOCKS * PAGE_TOKENS)
        trainer = await bench.run()
        for version in range(2, CYCLES + 2):
            if version in (2, CYCLES + 1):  # its keys and values fill the blocks
                await server.complete(reference.prompt(BLOCKS * PAGE_TOKENS - 2), 1)
            awake = (await server.contract()).process.resident_bytes
            answer = await put_to_sleep(trainer, server, keep="nothing")
            asleep = (await server.contract()).process.resident_bytes
            found.append((answer["released_bytes"], awake - asleep, asleep))
            await trainer.publish(version, bench.weights(2))
        bench.end_run()
    return found
