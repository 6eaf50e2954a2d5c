"""Measures the tokens per second of two servers with the same requests, alternately."""

import asyncio
import time
from typing import Any

import aiohttp
import numpy as np

from benchmarks.ratios import ratio_of_medians

CONCURRENT, TOKENS, WARM_UP = 64, 128, 3


async def throughput(
    adapter: str, bare: str, model: str, runs: int, *, token: str = "", **fields: Any
) -> str:
    """Returns the throughput of both servers and its ratio, as text.

    fields: fields of the requests, in addition to those that every server knows.
    """
    found: dict[str, list[float]] = {adapter: [], bare: []}
    body = {"model": model, "max_tokens": TOKENS, "logprobs": True, "temperature": 1, **fields}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)  # servers close idle connections after 5 s
    async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
        for number in range(WARM_UP + runs):
            for url in (adapter, bare) if number % 2 else (bare, adapter):
                found[url].append(await _tokens_per_s(http, url, body))
    of_adapter, of_bare = found[adapter][WARM_UP:], found[bare][WARM_UP:]
    return (
        f"{runs} runs of {CONCURRENT} requests in turn: adapter {np.median(of_adapter):.0f} tokens/s, "
        f"bare {np.median(of_bare):.0f}; ratio {ratio_of_medians(of_adapter, of_bare)}"
    )


async def _tokens_per_s(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> float:
    began = time.perf_counter()
    tokens = await asyncio.gather(*(_ask(http, url, body, number) for number in range(CONCURRENT)))
    return sum(tokens) / (time.perf_counter() - began)


async def _ask(http: aiohttp.ClientSession, url: str, body: dict[str, Any], number: int) -> int:
    """Returns the number of tokens of the completion."""
    messages = [{"role": "user", "content": f"{number} + 3 ="}]
    async with http.post(f"{url}/v1/chat/completions", json=body | {"messages": messages}) as answer:
        assert answer.status == 200, f"{url}: {answer.status} {await answer.text()}"
        result = await answer.json()
    assert result["choices"][0]["logprobs"]["content"]
    return result["usage"]["completion_tokens"]
