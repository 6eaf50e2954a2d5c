"""Records the weight updates of a server, and which weights it serves.

`weight_updates`, `membership` and weight channels use it, in the server's event loop. This module must not
import them, or an engine.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from contracts.errors import ErrorCode
from contracts.inference import WeightsInfo
from inference_adapters.finite_weights import NotFiniteError
from inference_adapters.held_requests import HeldRequests
from inference_adapters.totals import Totals
from inference_adapters.update_record import UpdateError, UpdateRecord, reason_of

log = logging.getLogger(__name__)


class UpdateLedger:
    """The weight updates of one server, and the state of its weights.

    An update is exclusive if other updates and joins must wait for it: all requested updates are. A version
    that a channel pulls by itself is unrequested, and becomes exclusive when it is applied.
    """

    def __init__(self, hold_timeout_s: float, totals: Totals):
        self.version = 0  # version of the served weights
        self.lost: str | None = None  # reason why the weights were lost
        self.held = HeldRequests(hold_timeout_s)
        self.awake = asyncio.Event()  # cleared while the server sleeps, or is about to
        self.awake.set()
        self.dropped = False  # True if the server sleeps without weights
        self._may_apply = asyncio.Event()  # set if a version may be applied that was not requested
        self._may_apply.set()
        self.joining: asyncio.Task[Any] | None = None  # join in progress
        self._totals = totals
        self._updates: dict[int, UpdateRecord] = {}  # updates of this run, by version
        self._current: UpdateRecord | None = None  # last exclusive update
        self._served: UpdateRecord | None = None  # update of the served weights
        self._any_version = False  # True after a takeover: the first version may be lower than `version`

    # --- served weights and current update --------------------------------------------------------

    @property
    def exclusive(self) -> UpdateRecord | None:
        """The exclusive update in progress, or None."""
        return self._current if self._current and self._current.is_exclusive else None

    def get(self, version: int) -> UpdateRecord | None:
        """Returns the record of the last update to `version` in this run, or None."""
        return self._updates.get(version)

    def is_older(self, version: int) -> bool:
        """Returns True if a version is lower than the live one and must not replace it."""
        return version < self.version and not self._any_version

    def serves(self, run: str, manifest_sha256: str) -> bool:
        """Returns True if the served weights are this stored version of `run`."""
        served = None if self.dropped or self.lost else self._served
        return served is not None and (served.outcome.run, served.manifest_sha256) == (run, manifest_sha256)

    def weights_info(self, run: str | None) -> WeightsInfo:
        """Returns the state of the weights for `/contract`. `run`: the server's current run."""
        state = "receiving" if self.exclusive else "lost" if self.lost else "live"
        if self._served is None:
            return WeightsInfo(version=self.version, state=state)
        origin = self._served.outcome.run
        return WeightsInfo(
            version=self.version,
            state=state,
            run=origin if origin == run else None,
            digest=self._served.digest,
        )

    # --- updating ---------------------------------------------------------------------------------

    def add(self, record: UpdateRecord) -> None:
        """Registers the record. It is exclusive until it ends, unless it is unrequested."""
        self._updates[record.outcome.version] = record
        if not record.is_unrequested:
            self._current = record

    def begin(
        self,
        record: UpdateRecord,
        work: Coroutine[Any, Any, None],
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        """Starts `work`, the coroutine of an update that was added."""
        record.task = asyncio.create_task(work)
        record.task.add_done_callback(partial(self._on_end, record, on_failure))

    async def acquire_exclusive(self, record: UpdateRecord) -> None:
        """Makes the update exclusive. An unrequested one first waits for a join to end.

        It also waits while the server sleeps, unless only an update can wake it.
        """
        while record.is_unrequested and (self.joining or not self._may_apply.is_set()):
            if self.joining:
                await asyncio.wait([self.joining])
            else:
                await self._may_apply.wait()
        record.applying = True
        self._current = record

    def cancel(self, record: UpdateRecord, why: str, superseded: bool = False) -> None:
        """Cancels an update, unless it is being applied."""
        if record.receiving and record.task is None:  # an unrequested version that was not begun
            self._record_unsuccessful(record, why, superseded)
        else:
            record.cancel(why, superseded)

    async def cancel_and_wait(self, record: UpdateRecord, why: str) -> None:
        """Cancels an update, unless it is being applied, and waits for its end."""
        self.cancel(record, why)
        await record.wait()

    def forget(self, any_version: bool) -> None:
        """Forgets the updates of the last run. `any_version`: the new run may start at a lower version."""
        self._updates.clear()
        self._current = None
        self._any_version = any_version

    # --- sleep ------------------------------------------------------------------------------------

    def begin_sleep(self) -> None:
        """Lets new requests wait, and versions that were not requested."""
        self.awake.clear()
        self._may_apply.clear()

    def fall_asleep(self, dropped: bool) -> None:
        """Counts the time for which requests wait, until `end_sleep` or until an update is live.

        dropped: the weights are gone, so any version may wake the server.
        """
        self.dropped = dropped
        if dropped:
            self._may_apply.set()
        self.held.begin(ErrorCode.ASLEEP, "the server slept, and did not wake in time")

    def end_sleep(self) -> None:
        """Lets requests go on, because the server can generate."""
        self.dropped = False
        self.awake.set()
        self._may_apply.set()
        self.held.end()

    def lose(self, why: str) -> None:
        """Records that the weights are lost, awake or asleep."""
        self.end_sleep()
        self.lost = why
        self.held.begin(ErrorCode.WEIGHTS_LOST, "the weights were lost and did not come back in time")

    # --- end of an update -------------------------------------------------------------------------

    def _on_end(
        self, record: UpdateRecord, on_failure: Callable[[], None] | None, task: asyncio.Task[None]
    ) -> None:
        if task.cancelled():
            self._record_unsuccessful(record, record.cancel_reason or "cancelled", record.superseded)
        elif error := task.exception():
            trace = None if isinstance(error, UpdateError) else error
            reason = reason_of(error)
            log.warning("weight update %d failed: %s", record.outcome.version, reason, exc_info=trace)
            record.is_permanent = isinstance(error, NotFiniteError)
            self._record_unsuccessful(record, reason, isinstance(error, UpdateError) and error.skipped)
        else:
            self._record_live(record)
            self._count(record)
        if on_failure and record.outcome.state == "failed":
            on_failure()

    def _record_unsuccessful(self, record: UpdateRecord, why: str, skipped: bool) -> None:
        """Records the end of an unsuccessful update. `skipped`: it is superseded or invalid."""
        record.outcome.error = why
        if skipped:
            record.outcome.state = "skipped"
        else:
            self._record_failed(record, why)
        self._count(record)

    def _count(self, record: UpdateRecord) -> None:
        self._totals.add_update(record.status(), time.monotonic() - record.accepted_at)
        record.task = None
        record.ended.set()

    def _record_live(self, record: UpdateRecord) -> None:
        record.outcome.state = "live"
        record.outcome.error = None
        self.version = record.outcome.version
        self._served = record
        self._any_version = False
        self.lost = None
        self.end_sleep()

    def _record_failed(self, record: UpdateRecord, why: str) -> None:
        record.outcome.state = "failed"
        if record.progress.touched and not self.lost:
            self.lose(f"the weights were lost in the update to version {record.outcome.version}: {why}")
