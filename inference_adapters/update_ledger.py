"""The ledger of a server's weight updates: which began, how each ended, and which weights are served.

`weight_updates`, `membership` and weight channels write in it and ask it. It knows none of them, and no
engine. All of it runs in the server's event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from contracts.inference import WeightsInfo
from inference_adapters.finite_weights import NotFiniteError
from inference_adapters.totals import Totals
from inference_adapters.update_record import UpdateError, UpdateRecord, reason_of

log = logging.getLogger(__name__)


class UpdateLedger:
    """The updates of one server, and what became of its weights by them."""

    def __init__(self, hold_timeout_s: float, totals: Totals):
        self.version = 0  # of the weights that are served
        self.lost: str | None = None  # why the weights were lost
        self.weights_given_up = asyncio.Event()  # set if lost weights are not replaced within hold_timeout_s
        self.join: asyncio.Task[Any] | None = None  # the join that is under way
        self._hold_timeout_s = hold_timeout_s
        self._hold_timer: asyncio.TimerHandle | None = None
        self._totals = totals
        self._updates: dict[int, UpdateRecord] = {}  # updates of this run, by version
        self._current: UpdateRecord | None = None  # the last update for which others had to wait
        self._served: UpdateRecord | None = None  # the update by which the weights came
        self._any_version = False  # whether a new run, whose first version may be lower, has taken over

    # --- what is served, and what is under way ----------------------------------------------------

    @property
    def receiving(self) -> UpdateRecord | None:
        """The update for which other updates and joins have to wait."""
        return self._current if self._current and self._current.occupies else None

    def get(self, version: int) -> UpdateRecord | None:
        """Returns the last update to a version in this run."""
        return self._updates.get(version)

    def is_older(self, version: int) -> bool:
        """Returns whether a version is lower than the live one, and must not replace it."""
        return version < self.version and not self._any_version

    def serves(self, run: str, manifest_sha256: str) -> bool:
        """Returns whether the weights are those of a stored version of a run."""
        served = self._served
        return served is not None and (served.outcome.run, served.manifest_sha256) == (run, manifest_sha256)

    def weights_info(self, run: str | None) -> WeightsInfo:
        """Returns what `/contract` says of the weights, to a server that belongs to `run`."""
        state = "receiving" if self.receiving else "lost" if self.lost else "live"
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
        """Makes the record that of its version. Unless it is pulled unasked, others wait for it from now."""
        self._updates[record.outcome.version] = record
        if not record.followed:
            self._current = record

    def begin(
        self,
        record: UpdateRecord,
        work: Coroutine[Any, Any, None],
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        """Runs an update whose record was added."""
        record.task = asyncio.create_task(work)
        record.task.add_done_callback(partial(self._ended, record, on_failure))

    async def occupy(self, record: UpdateRecord) -> None:
        """Makes other updates and joins wait for this one. A followed version waits for joins first."""
        while record.followed and self.join:
            await asyncio.wait([self.join])
        record.applying = True
        self._current = record

    def give_up(self, record: UpdateRecord, why: str, superseded: bool = False) -> None:
        """Cancels an update. One that is being applied goes on."""
        if record.receiving and record.task is None:  # a followed version that was not begun
            self._end(record, why, superseded)
        else:
            record.call_off(why, superseded)

    async def call_off(self, record: UpdateRecord, why: str) -> None:
        """Cancels an update and waits for its end. An update that is being applied is not cancelled."""
        self.give_up(record, why)
        await record.wait()

    def forget(self, any_version: bool) -> None:
        """Forgets the updates of the last run. `any_version`: the first of the new run may be lower."""
        self._updates.clear()
        self._current = None
        self._any_version = any_version

    # --- how an update ends -----------------------------------------------------------------------

    def _ended(
        self, record: UpdateRecord, on_failure: Callable[[], None] | None, task: asyncio.Task[None]
    ) -> None:
        if task.cancelled():
            self._end(record, record.called_off or "cancelled", record.superseded)
        elif error := task.exception():  # a failed update ends its group, not the server
            trace = None if isinstance(error, UpdateError) else error
            reason = reason_of(error)
            log.warning("weight update %d failed: %s", record.outcome.version, reason, exc_info=trace)
            record.hopeless = isinstance(error, NotFiniteError)
            self._end(record, reason, isinstance(error, UpdateError) and error.skipped)
        else:
            self._live(record)
            self._count(record)
        if on_failure and record.outcome.state == "failed":
            on_failure()

    def _end(self, record: UpdateRecord, why: str, skipped: bool) -> None:
        """Ends an update that is not live. `skipped`: it is superseded, or proven bad."""
        record.outcome.error = why
        if skipped:
            record.outcome.state = "skipped"
        else:
            self._failed(record, why)
        self._count(record)

    def _count(self, record: UpdateRecord) -> None:
        self._totals.add_update(record.status(), time.monotonic() - record.accepted_at)
        record.task = None
        record.ended.set()

    def _live(self, record: UpdateRecord) -> None:
        record.outcome.state = "live"
        record.outcome.error = None
        self.version = record.outcome.version
        self._served = record
        self._any_version = False
        self.lost = None
        self.weights_given_up.clear()
        if self._hold_timer:
            self._hold_timer.cancel()

    def _failed(self, record: UpdateRecord, why: str) -> None:
        record.outcome.state = "failed"
        if record.progress.touched and not self.lost:
            self.lost = f"the weights were lost in the update to version {record.outcome.version}: {why}"
            loop = asyncio.get_running_loop()
            self._hold_timer = loop.call_later(self._hold_timeout_s, self.weights_given_up.set)
