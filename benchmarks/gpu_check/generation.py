"""Tokens a second of the transformers adapter, for several numbers of requests at a time."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp
import torch

from benchmarks.gpu_check.machine import device_of
from benchmarks.gpu_check.models import HALF_A_BILLION, TINY, write_model
from benchmarks.gpu_check.servers import serving, transformers_command
from pipelinerl.clients.http_session import open_session

PROMPT = list(range(2, 34))  # token ids, which mean nothing to random weights
OPTIONS = ["--dtype", "bfloat16", "--max-batch-tokens", "2048", "--num-blocks", "4096"]
RUNS = 2  # after one that is not counted


def check(dry: bool) -> list[str]:
    """Returns a line for each number of requests at a time."""
    shape = TINY if dry else HALF_A_BILLION
    concurrent = (4,) if dry else (1, 64, 256)
    tokens = 16 if dry else 128
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model", shape, torch.bfloat16, device_of(dry))
        with serving(Path(folder), transformers_command(model, device_of(dry), *OPTIONS)) as server:
            return [asyncio.run(_throughput(server.url, model, count, tokens)) for count in concurrent]


async def _throughput(url: str, model: str, concurrent: int, tokens: int) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 1, "logprobs": 0}
    async with open_session(None) as http:
        rates = [await _tokens_per_s(http, url, body, concurrent) for _ in range(1 + RUNS)][1:]
    return (
        f"{concurrent} request(s) of {tokens} tokens at a time: {statistics.median(rates):,.0f} tokens/s "
        f"({min(rates):,.0f} to {max(rates):,.0f})"
    )


async def _tokens_per_s(
    http: aiohttp.ClientSession, url: str, body: dict[str, object], concurrent: int
) -> float:
    began = time.perf_counter()
    tokens = await asyncio.gather(*(_complete(http, url, body) for _ in range(concurrent)))
    return sum(tokens) / (time.perf_counter() - began)


async def _complete(http: aiohttp.ClientSession, url: str, body: dict[str, object]) -> int:
    """Returns the number of tokens of a completion."""
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        assert answer.status == 200, f"{answer.status} {await answer.text()}"
        return (await answer.json())["usage"]["completion_tokens"]
