"""The weight channel that a server is in, and the versions that come over it.

`weight_updates` decides which channel that is, and which updates are accepted. The channel itself obtains
versions, and the engine loads them.
"""

import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from contracts.channel import ChannelInfo
from contracts.errors import ContractError, ErrorCode
from contracts.inference import KvCacheMode, WeightUpdateStatus
from extensions.stored_weights.server.base import Channel, fetched_within, stored_update
from extensions.stored_weights.server.follower import Follower
from extensions.stored_weights.store.manifest import LatestVersion
from inference_adapters.update_record import UpdateRecord

if TYPE_CHECKING:
    from extensions.stored_weights.store.assembly import AssembledVersion
    from inference_adapters.weight_updates import WeightUpdates

APPLYING_S = 60.0  # for which a join waits while a followed version is being applied


class JoinedChannel:
    """The channel of one server, or none. All of it runs in the server's event loop."""

    def __init__(self, updates: "WeightUpdates"):
        self._updates = updates
        self._channel: Channel | None = None
        self._follower: Follower | None = None
        self._target: UpdateRecord | None = None  # the version that was begun last

    def info(self) -> ChannelInfo | None:
        """Returns what `/contract` says of the channel."""
        if self._channel is None:
            return None
        target = self._target if self._target and self._target.receiving else None
        return self._channel.info(target)

    # --- joining and leaving ----------------------------------------------------------------------

    def enter(self, channel: Channel) -> None:
        """Takes an opened channel, and begins to follow it if it is to be followed. There must be none."""
        self._channel = channel
        self._follower = Follower(self, channel) if channel.request.follow else None

    async def leave(self, why: str) -> None:
        """Ends the channel with all of its tasks, if there is one."""
        channel = self._channel
        follower = self._follower
        self._channel = self._follower = None  # from here on nothing of it is applied
        if follower is not None:
            await follower.stop(why)
        if channel is not None:
            await channel.close()

    # --- versions that a trainer requests ---------------------------------------------------------

    def epoch_for_requests(self) -> int:
        """Returns the channel's epoch. Raises ContractError if there is none, or if it follows."""
        if self._channel is None:
            raise ContractError(ErrorCode.NO_CHANNEL, "this server is in no weight channel: join one first")
        request = self._channel.request
        if request.follow:
            why = f"the channel of epoch {request.epoch} follows the run, and takes no requests"
            raise ContractError(ErrorCode.INVALID_REQUEST, why, "manifest_sha256")
        return request.epoch

    async def pull(self, record: UpdateRecord, kv_cache: KvCacheMode) -> None:
        """Fetches and applies a requested version, within the timeout of its record."""
        channel = self._channel
        self._target = record
        stored = await fetched_within(channel, record)
        await self.apply(record, channel, stored, kv_cache)

    async def apply(
        self, record: UpdateRecord, channel: Channel, stored: "AssembledVersion", kv_cache: KvCacheMode
    ) -> None:
        """Has the engine load a version, unless its channel has been left meanwhile."""
        record.progress.transfer_s = time.monotonic() - record.accepted_at
        if record.followed:
            await self._updates.joins_ended()
        if self._channel is not channel:
            raise RuntimeError("its channel was left")
        record.digest = stored.manifest.digest
        self._updates.occupy(record)
        await self._updates.engine.load_weights(stored_update(stored, kv_cache), record.progress)

    # --- versions that are followed ---------------------------------------------------------------

    def wants(self, latest: LatestVersion) -> bool:
        """Returns whether the newest version of the run is to be pulled."""
        is_live = self._updates.serves(latest.run, latest.manifest_sha256)
        return not is_live and not self._updates.is_older(latest.version)

    def note(self, latest: LatestVersion) -> UpdateRecord:
        """Returns a new record of a version that will be pulled."""
        outcome = WeightUpdateStatus(
            run=latest.run, epoch=self._channel.request.epoch, version=latest.version
        )
        record = UpdateRecord(outcome, APPLYING_S, manifest_sha256=latest.manifest_sha256, followed=True)
        self._updates.add(record)
        return record

    def begin(self, record: UpdateRecord, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work on a followed version."""
        self._target = record
        self._updates.begin(record, work)

    def give_up(self, record: UpdateRecord, why: str, superseded: bool = False) -> None:
        """Ends a version that is not being applied yet."""
        self._updates.give_up(record, why, superseded)
