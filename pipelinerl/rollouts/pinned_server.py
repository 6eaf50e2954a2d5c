"""A server that is kept out of the weight group while an evaluation runs on it: what it holds, and
whether it is still there."""

import asyncio
from collections.abc import Coroutine

import aiohttp

from contracts.inference import ContractInfo
from pipelinerl.clients.server_control import Refused, ServerControl
from pipelinerl.clients.server_pool import ServerPool

LOOK_EVERY_S = 1.0
MISSES = 3  # in a row, after which it counts as gone


class ServerLost(Exception):
    """It does not hold the weights any more for which it was kept out."""


class Silent(ServerLost):
    """It does not answer."""


class TakenBack(ServerLost):
    """The trainer has given it other weights."""


class PinnedServer:
    """run: whose weights it is to hold."""

    def __init__(self, session: aiohttp.ClientSession, url: str, run: str):
        self.url = url
        self._control, self._run = ServerControl(session, url), run

    async def pool(self, concurrency: int) -> ServerPool:
        """Of this server alone."""
        pool = ServerPool(concurrency)
        await pool.set_servers([self.url])
        return pool

    async def version(self) -> int:
        """Of its weights, by its own account; nothing changes it while the server is out of the group."""
        weights = (await self._contract()).weights
        if weights.state != "live":
            raise ServerLost(f"{self.url}: its weights are not live but {weights.state}")
        return weights.version

    async def while_there(self, version: int, work: Coroutine[None, None, None]) -> None:
        """`work`, which is cancelled when the server is gone, or holds another version: ServerLost."""
        working, watching = asyncio.create_task(work), asyncio.create_task(self._watch(version))
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
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                held = await self.version()
            except Silent:
                misses += 1
                if misses == MISSES:
                    raise
                continue
            misses = 0
            if held != version:
                raise TakenBack(f"{self.url} was given version {held}")

    async def _contract(self) -> ContractInfo:
        try:
            info = await self._control.contract()
        except (aiohttp.ClientError, TimeoutError, Refused, ValueError) as error:
            raise Silent(f"{self.url} does not answer ({type(error).__name__})") from error
        if info.run != self._run:
            raise ServerLost(f"{self.url} was started anew")
        return info
