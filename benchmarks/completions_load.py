"""Keeps an inference server busy with completions."""

import asyncio
from multiprocessing.synchronize import Event

import aiohttp


def keep_generating(url: str, model: str, requests: int, began: Event) -> None:
    """Keeps `requests` completions in flight until the process is killed. Sets `began` before the first."""
    asyncio.run(_keep_generating(url, model, requests, began))


async def _keep_generating(url: str, model: str, requests: int, began: Event) -> None:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 900, "temperature": 1.0}

    async def ask(session: aiohttp.ClientSession) -> None:
        while True:
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                await answer.read()

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        began.set()
        await asyncio.gather(*(ask(session) for _ in range(requests)))
