"""Polls which version of a run is the newest, beside the work."""

import asyncio

from extensions.stored_weights.store.latest import LatestWatch
from extensions.stored_weights.store.manifest import LatestVersion
from extensions.stored_weights.store.rules import PullRules
from extensions.stored_weights.store.signing import Verifier
from extensions.stored_weights.store.source_client import SourceClient
from extensions.stored_weights.store.sources import Sources
from extensions.volunteers.messages import Run

EVERY_S = 1.0


class NewestVersion:
    """The newest version of a run, as signed in `latest.json`. It polls until it is closed."""

    def __init__(self, run: Run):
        self._client = SourceClient(Sources(run.sources), PullRules())
        self._watch = LatestWatch(self._client, Verifier(run.public_keys), run.run)
        self._latest: asyncio.Future[LatestVersion] = asyncio.get_running_loop().create_future()
        self._polling = asyncio.create_task(self._poll())

    async def get(self) -> LatestVersion:
        """Returns the newest version. It waits for the first one."""
        await asyncio.wait([self._latest, self._polling], return_when=asyncio.FIRST_COMPLETED)
        if self._polling.done():
            self._polling.result()  # raises what ended the polls
        return self._latest.result()

    async def _poll(self) -> None:
        while True:
            if latest := await self._watch.poll():
                if self._latest.done():
                    self._latest = asyncio.get_running_loop().create_future()
                self._latest.set_result(latest)
            await asyncio.sleep(EVERY_S)

    async def close(self) -> None:
        self._polling.cancel()
        await self._watch.close()
        await self._client.close()
