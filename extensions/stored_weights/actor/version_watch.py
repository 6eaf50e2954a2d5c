"""Asks every server which weights it serves, twice a second, and holds those whose weights may not be used.

Used by the actor with `weights=relay`. Each server is asked in a task of its own, so that one that
hangs delays no other's answer. The rules are in `served_versions`.
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
    """A pool, and the oldest version that what it serves can use."""

    pool: ServerPool
    oldest: Callable[[], int]


class VersionWatch(ServerGate):
    """Watches the servers that the last publication has named.

    most_behind: versions that a server for training may be behind; None if there is no limit.
    on_change: is called when a server is held or let go.
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
        """Holds servers of this pool too. `oldest`: of what it serves; by default that of training."""
        self._watched.append(Watched(pool, oldest or (lambda: self._versions.oldest_usable)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ends the questions to the servers when the block ends."""
        try:
            yield
        finally:
            asking = [*self._asking.values()]
            for url in [*self._asking]:
                self._stop(url)
            await asyncio.gather(*asking, return_exceptions=True)

    def recheck(self) -> None:
        """Applies what is known to the pools. Must be called when the oldest version of one changes."""
        self._apply(self._asking)

    def published(self, published: WeightsPublished) -> None:
        """Takes a publication into account, before its servers are given to the pools."""
        self._versions.published(published.run, published.version)
        for url in self._asking.keys() - set(published.servers):
            self.forget(url)
        for url in published.servers:
            if url not in self._asking:
                self._asking[url] = asyncio.create_task(self._ask(url))
        self._apply(published.servers)

    def forget(self, url: str) -> None:
        """Forgets a server that has left, or that keeps its weights."""
        self._stop(url)
        self._versions.forget(url)

    @property
    def behind(self) -> int:
        """The versions that a server with requests for training is behind the newest, at most."""
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
                pass  # it is asked again, and is held meanwhile if its version is too old
            except Exception:
                log.exception("%s is asked again which weights it serves", url)
            await asyncio.sleep(EVERY_S)

    def _apply(self, urls: Iterable[str]) -> None:
        """Holds the servers that may not be used, and lets the others go."""
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
