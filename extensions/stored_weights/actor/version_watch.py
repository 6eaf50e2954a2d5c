"""Polls the weights of every server twice a second, and holds servers whose weights must not be used.

A server that is held gets no requests. The actor uses it with `weights=relay`. Each server has its own task,
so that a server that hangs does not delay the others. The rules are in `served_versions`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from contracts.records import WeightsPublished
from extensions.stored_weights.actor.served_versions import ServedVersions
from pipelinerl.clients.server_control import NO_ANSWER, ServerControl
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.weight_transport import ServerGate

log = logging.getLogger(__name__)

EVERY_S = 0.5
ANSWER_TIMEOUT_S = 4.0


@dataclass(frozen=True)
class Watched:
    """A pool. `oldest` returns the oldest version that its requests may use."""

    pool: ServerPool
    oldest: Callable[[], int]


class VersionWatch(ServerGate):
    """Watches the servers of the last publication.

    most_behind: maximum lag of a server for training, in versions; None if there is no limit.
    on_change: called when a server is held or released.
    """

    def __init__(
        self, session: aiohttp.ClientSession, most_behind: int | None, on_change: Callable[[], None]
    ):
        self._session = session
        self._versions = ServedVersions(most_behind)
        self._on_change = on_change
        self._watched: list[Watched] = []
        self._asking: dict[str, asyncio.Task[None]] = {}

    def watch(self, pool: ServerPool, oldest: Callable[[], int] | None = None) -> None:
        """Also holds servers of this pool. `oldest`: by default the oldest version for training."""
        self._watched.append(Watched(pool, oldest or (lambda: self._versions.oldest_usable)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Stops polling when the block ends."""
        try:
            yield
        finally:
            asking = [*self._asking.values()]
            for url in [*self._asking]:
                self._stop(url)
            await asyncio.gather(*asking, return_exceptions=True)

    def recheck(self) -> None:
        """Applies the known versions to the pools. Call it when the oldest version of a pool changes."""
        self._apply(self._asking)

    def published(self, published: WeightsPublished) -> None:
        """Records a publication. Call it before passing its servers to the pools."""
        self._versions.published(published.run, published.version)
        for url in self._asking.keys() - set(published.servers):
            self.forget(url)
        for url in published.servers:
            if url not in self._asking:
                self._asking[url] = asyncio.create_task(self._ask(url))
        self._apply(published.servers)

    def forget(self, url: str) -> None:
        """Forgets a server that has left the run, or that keeps its weights."""
        self._stop(url)
        self._versions.forget(url)

    @property
    def behind(self) -> int:
        """The largest lag, in versions, of the servers that get requests for training."""
        return self._versions.behind(self._asking)

    def _stop(self, url: str) -> None:
        if task := self._asking.pop(url, None):
            task.cancel()

    async def _ask(self, url: str) -> None:
        control = ServerControl(self._session, url)
        while True:
            try:
                self._versions.observe(url, (await control.contract(ANSWER_TIMEOUT_S)).weights)
                self._apply([url])
            except NO_ANSWER:
                pass  # polled again
            except Exception:
                log.exception("%s is asked again which weights it serves", url)
            await asyncio.sleep(EVERY_S)

    def _apply(self, urls: Iterable[str]) -> None:
        before = [watched.pool.held for watched in self._watched]
        for url in urls:
            for watched in self._watched:
                if why := self._versions.why_held(url, watched.oldest()):
                    watched.pool.hold(url, why)
                else:
                    watched.pool.release(url)
        after = [watched.pool.held for watched in self._watched]
        if before != after:
            self._on_change()
        for url in before[0].keys() ^ after[0].keys():
            log.info("%s %s", url, f"is held: {after[0][url]}" if url in after[0] else "gets requests again")
