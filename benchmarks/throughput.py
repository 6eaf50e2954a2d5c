"""Tokens per second of two servers under the same requests, in turn."""

import asyncio
import time

import aiohttp
import numpy as np

from benchmarks.ratios import ratio_of_medians

CONCURRENT, TOKENS, WARM_UP = 64, 128, 3


async def throughput(adapter: str, bare: str, model: str, runs: int) -> str:
    found: dict[str, list[float]] = {adapter: [], bare: []}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for number in range(WARM_UP + runs):
            for url in (adapter, bare) if number % 2 else (bare, adapter):
                found[url].append(await _tokens_per_s(http, url, model))
    of_adapter, of_bare = found[adapter][WARM_UP:], found[bare][WARM_UP:]
    return (
        f"{runs} runs of {CONCURRENT} requests in turn: adapter {np.median(of_adapter):.0f} tokens/s, "
        f"bare {np.median(of_bare):.0f}; ratio {ratio_of_medians(of_adapter, of_bare)}"
    )


async def _tokens_per_s(http: aiohttp.ClientSession, url: str, model: str) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(_ask(http, url, model, number) for number in range(CONCURRENT)))
    return CONCURRENT * TOKENS / (time.perf_counter() - began)


async def _ask(http: aiohttp.ClientSession, url: str, model: str, number: int) -> None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{number} + 3 ="}],
        "max_tokens": TOKENS,
        "logprobs": True,
        "return_token_ids": True,
        "ignore_eos": True,
        "temperature": 1,
    }
    async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
        assert len((await answer.json())["choices"][0]["token_ids"]) == TOKENS
