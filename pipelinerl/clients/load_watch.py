"""Polls the load of a pool's servers and adapts their concurrency.

Used by the actor if `inference.concurrency` is null. A server without `/metrics` keeps its initial limit.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from math import isfinite

import aiohttp
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from contracts.metrics import PAUSED_SECONDS, REQUESTS, SAMPLED_TOKENS
from pipelinerl.clients.adaptive_limit import AdaptiveLimit, Load
from pipelinerl.clients.answer_bodies import body_of
from pipelinerl.clients.background import in_background
from pipelinerl.clients.server_pool import ServerPool

log = logging.getLogger(__name__)

EVERY_S = 2.0
ANSWER_TIMEOUT_S = 4.0
LONGEST_ANSWER = 2**22  # bytes
NAMES = (REQUESTS.name, SAMPLED_TOKENS.name, PAUSED_SECONDS.name)


@asynccontextmanager
async def adapting(
    pool: ServerPool, session: aiohttp.ClientSession, at_first: int, on_more: Callable[[], None]
) -> AsyncIterator[None]:
    """Adapts the limits of requests per server, which start at `at_first`, while the block runs.

    on_more: called when the pool's capacity has increased.
    """
    async with in_background(LoadWatch(pool, session, at_first, on_more).run()):
        yield


class LoadWatch:
    def __init__(
        self, pool: ServerPool, session: aiohttp.ClientSession, at_first: int, on_more: Callable[[], None]
    ):
        self._pool = pool
        self._session = session
        self._at_first = at_first
        self._on_more = on_more
        self._limits: dict[str, AdaptiveLimit] = {}

    async def run(self) -> None:
        while True:
            try:
                await self.poll()
            except Exception:
                log.exception("the servers' loads were not read; they keep the numbers that they have")
            await asyncio.sleep(EVERY_S)

    async def poll(self) -> None:
        """Reads the load of every server once."""
        urls = self._pool.urls
        loads = await asyncio.gather(*(_load_of(self._session, url) for url in urls))
        for url, load in zip(urls, loads, strict=True):
            if load:
                self._adapt(url, load)

    def _adapt(self, url: str, load: Load) -> None:
        limit = self._limits.setdefault(url, AdaptiveLimit(self._at_first))
        before = limit.limit
        limit.observe(load)
        if limit.limit != before:
            log.info("%s gets %d requests at a time, after %d", url, limit.limit, before)
        capacity = self._pool.capacity
        self._pool.set_limit(url, limit.limit)
        if self._pool.capacity > capacity:
            self._on_more()


async def _load_of(session: aiohttp.ClientSession, url: str) -> Load | None:
    """Returns the server's load, or None if it reports none."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    try:
        async with session.get(f"{url}/metrics", timeout=timeout, allow_redirects=False) as answer:
            text = (await body_of(answer, LONGEST_ANSWER)).decode()
        return _load(_metrics(text.splitlines()), asyncio.get_running_loop().time())
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError):
        return None


def _metrics(lines: Iterable[str]) -> Iterable[Metric]:
    """Returns the metrics of the load, among hundreds of an engine."""
    ours = [line for line in lines if line.startswith(NAMES)]
    return text_string_to_metric_families("\n".join(ours) + "\n")


def _load(metrics: Iterable[Metric], time: float) -> Load:
    """Returns the load. Raises KeyError if a metric is missing, and ValueError if a value is invalid."""
    values = {(s.name, s.labels.get("state")): s.value for metric in metrics for s in metric.samples}
    if not all(isfinite(value) and value >= 0 for value in values.values()):
        raise ValueError("a metric that counts is not a number")
    return Load(
        time,
        values[SAMPLED_TOKENS.name, None],
        values[PAUSED_SECONDS.name, None],
        values[REQUESTS.name, "running"] + values[REQUESTS.name, "waiting"],
    )
