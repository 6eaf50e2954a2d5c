"""A server that gets no new weights while an evaluation runs on it, and the checks that this holds."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

import aiohttp

from contracts.inference import ContractInfo
from pipelinerl.clients.server_control import NO_ANSWER, ServerControl
from pipelinerl.clients.server_pool import ServerPool

POLL_S = 1.0
ANSWER_TIMEOUT_S = 4.0
MISSES = 3  # consecutive missing answers after which the server counts as lost


class PinnedServerLostError(Exception):
    """The server no longer serves the weights that it was pinned for."""


class ServerSilentError(PinnedServerLostError):
    """The pinned server does not answer."""


class ServerGoneError(PinnedServerLostError):
    """The pinned server has left the run."""


class WeightsReplacedError(PinnedServerLostError):
    """The trainer has given the pinned server other weights."""


class PinnedServer:
    """A server that is excluded from weight updates. run: id of the trainer's run whose weights it serves."""

    def __init__(self, session: aiohttp.ClientSession, url: str, run: str):
        self.url = url
        self._control = ServerControl(session, url)
        self._run = run
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    async def pool(self, concurrency: int) -> ServerPool:
        pool = ServerPool(concurrency)
        await pool.set_servers([self.url])
        return pool

    async def version(self) -> int:
        """Returns the server's weight version. Raises PinnedServerLostError if none is live."""
        weights = (await self._contract()).weights
        if weights.state != "live":
            raise PinnedServerLostError(f"{self.url}: its weights are not live but {weights.state}")
        return weights.version

    async def while_there(self, version: int, work: Coroutine[None, None, None]) -> None:
        """Waits for `work`. Cancels it, and raises PinnedServerLostError, if the server loses `version`."""
        working = asyncio.create_task(work)
        watching = asyncio.create_task(self._watch(version))
        try:
            ended, _ = await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            await (working if working in ended else watching)
        finally:
            working.cancel()
            watching.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _watch(self, version: int) -> None:
        misses = 0
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), POLL_S)
                raise ServerGoneError(f"{self.url} has left the run")
            try:
                served = await self.version()
            except ServerSilentError:
                misses += 1
                if misses == MISSES:
                    raise
                continue
            misses = 0
            if served != version:
                raise WeightsReplacedError(f"{self.url} was given version {served}")

    async def _contract(self) -> ContractInfo:
        try:
            info = await self._control.contract(ANSWER_TIMEOUT_S)
        except NO_ANSWER as error:
            raise ServerSilentError(f"{self.url} does not answer ({type(error).__name__})") from error
        if info.run != self._run:
            raise PinnedServerLostError(f"{self.url} was restarted")
        if info.weights.run is None and info.channel is not None:
            raise PinnedServerLostError(f"{self.url} has weights of an earlier run")
        return info
