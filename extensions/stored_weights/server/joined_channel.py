"""The `WeightChannel` of a store, which a server has joined or is joining.

It fetches versions by a `Channel` (`base`), with retries.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from contracts.channel import ChannelInfo
from contracts.limits import KvCacheMode
from extensions.stored_weights.server.base import Channel, pauses
from extensions.stored_weights.server.follower import Follower
from inference_adapters.channel import WeightChannel
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateError, UpdateRecord

if TYPE_CHECKING:
    from extensions.stored_weights.store.assembly import AssembledVersion


class JoinedChannel(WeightChannel):
    """The channel of a store, with a `Follower` if the request says `follow`."""

    def __init__(self, channel: Channel, ledger: UpdateLedger):
        self.request = channel.request
        self._channel = channel
        self._ledger = ledger
        self._follower: Follower | None = None

    async def open(self) -> str | None:
        proof = await self._channel.check()
        await self._channel.open()
        return proof

    def begin(self) -> None:
        if self.request.follow:
            self._follower = Follower(self._channel, self._ledger)

    async def close(self, why: str) -> None:
        self._channel.left = True
        if self._follower is not None:
            await self._follower.stop(why)
        await self._channel.close()

    def info(self) -> ChannelInfo:
        return self._channel.info()

    async def pull(self, record: UpdateRecord, kv_cache: KvCacheMode) -> None:
        stored = await self._fetched_in_time(record)
        await self._channel.apply(record, stored, kv_cache)

    async def _fetched_in_time(self, record: UpdateRecord) -> "AssembledVersion":
        """Fetches the version of a record, with retries until the record's timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(record.timeout_s):
                for pause_s in pauses():
                    if stored := await self._channel.attempt(record):
                        return stored
                    await asyncio.sleep(pause_s)
        fetched = record.transfer.bytes_fetched
        raise UpdateError(
            record.outcome.error or f"no_source: only {fetched} bytes came in {record.timeout_s:g} s"
        )
