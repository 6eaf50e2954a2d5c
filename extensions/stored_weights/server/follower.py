"""Pulls each newer version of a channel without a request.

Two tasks run in the server's event loop. One polls for versions; the other fetches and applies them, one at a
time. A version that fails for a temporary cause is retried while it is the newest.
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from contracts.inference import WeightUpdateStatus
from extensions.stored_weights.server.base import pauses
from extensions.stored_weights.store.manifest import LatestVersion
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateError, UpdateRecord

if TYPE_CHECKING:
    from extensions.stored_weights.server.relay import RelayChannel
    from extensions.stored_weights.store.assembly import AssembledVersion

log = logging.getLogger(__name__)

APPLYING_S = 60.0  # time for which a join waits while a version is being applied


class Follower:
    """The two tasks of a channel with `follow`."""

    def __init__(self, channel: "RelayChannel", ledger: UpdateLedger):
        self._channel = channel
        self._ledger = ledger
        self._newest: LatestVersion | None = None
        self._waiting: UpdateRecord | None = None  # newest version, if it has not been begun
        self._pulled: UpdateRecord | None = None  # last version that was begun
        self._dropped = False  # True if the version before `_pulled` was cancelled for it
        self._has_newer = asyncio.Event()  # set while `_waiting` is not None
        self._tasks = [asyncio.create_task(self._poll()), asyncio.create_task(self._pull())]

    async def stop(self, why: str) -> None:
        """Cancels both tasks, and the versions that wait or are being pulled."""
        for task in self._tasks:
            task.cancel()
        for record in filter(None, (self._waiting, self._pulled)):
            self._ledger.cancel(record, why)
            await record.wait()
        await asyncio.wait(self._tasks)

    # --- polling ----------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            try:
                latest = await self._channel.poll()
            except Exception:
                log.exception("the sources of weights could not be asked for the newest version")
                latest = None
            if latest is not None and self._is_newer(latest):
                self._note(latest)
            await asyncio.sleep(self._channel.request.poll_s)

    def _is_newer(self, latest: LatestVersion) -> bool:
        if self._newest is not None and latest.version <= self._newest.version:
            return False
        is_live = self._ledger.serves(latest.run, latest.manifest_sha256)
        return not is_live and not self._ledger.is_older(latest.version)

    def _note(self, latest: LatestVersion) -> None:
        self._newest = latest
        why = f"superseded: version {latest.version} is newer"
        if self._waiting:
            self._ledger.cancel(self._waiting, why, superseded=True)
        self._waiting = self._record_of(latest)
        if self._pulled and self._pulled.receiving and self._is_early(self._pulled):
            self._dropped = True
            self._ledger.cancel(self._pulled, why, superseded=True)
        self._has_newer.set()

    def _record_of(self, latest: LatestVersion) -> UpdateRecord:
        """Adds a new record of a version to the ledger, and returns it."""
        epoch = self._channel.request.epoch
        outcome = WeightUpdateStatus(run=latest.run, epoch=epoch, version=latest.version)
        record = UpdateRecord(
            outcome, APPLYING_S, manifest_sha256=latest.manifest_sha256, is_unrequested=True
        )
        self._ledger.add(record)
        return record

    def _is_early(self, record: UpdateRecord) -> bool:
        """Returns True if a version should be cancelled for a newer one: less than half of it is fetched.

        It never cancels two in a row. If versions appear faster than they are fetched, it completes every
        second one.
        """
        transfer = record.transfer
        early = 2 * transfer.bytes_done < max(1, transfer.bytes_total)
        return early and not record.applying and not self._dropped

    # --- pulling ----------------------------------------------------------------------------------

    async def _pull(self) -> None:
        while True:
            await self._has_newer.wait()
            self._has_newer.clear()
            record = self._waiting
            self._waiting = None
            if record.receiving:  # otherwise the trainer has aborted it
                await self._to_the_end(record)

    async def _to_the_end(self, record: UpdateRecord) -> None:
        """Pulls a version, with retries, until it is live, invalid or cancelled, or there is a newer one."""
        for pause_s in pauses():
            self._pulled = record
            self._ledger.begin(record, self._obtain(record))
            await record.wait()
            if not record.superseded:
                self._dropped = False
            if record.outcome.state != "failed" or record.cancel_reason or record.is_permanent:
                return
            if await self._newer_within(pause_s):
                return
            record = self._record_of(self._newest)

    async def _obtain(self, record: UpdateRecord) -> None:
        stored = await self._fetch(record)
        await self._channel.apply(record, stored, self._channel.request.kv_cache)

    async def _fetch(self, record: UpdateRecord) -> "AssembledVersion":
        for pause_s in pauses():
            if stored := await self._channel.attempt(record):
                return stored
            why = record.outcome.error
            log.warning("version %d could not be fetched: %s", record.outcome.version, why)
            if await self._newer_within(pause_s):
                why = f"superseded: version {self._newest.version} is newer; {why}"
                raise UpdateError(why, skipped=True)
        raise AssertionError("the pauses do not end")

    async def _newer_within(self, pause_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_newer.wait(), pause_s)
        return self._has_newer.is_set()
