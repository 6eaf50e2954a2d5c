"""Decides which weight group, channel and update a server accepts, and records how each ended.

It is the state machine that every adapter shares: run, takeover, epoch and version; validation before any
collective; idempotent retries; waiting; cancelling. It knows no HTTP and no tensors: `control_routes` calls
it, and an `InferenceEngine` carries out its decisions. All of it runs in one event loop.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    AbortWeightUpdateRequest,
    ContractInfo,
    Health,
    InferenceEngine,
    WeightsInfo,
    WeightUpdateAccepted,
    WeightUpdateRequest,
    WeightUpdateStatus,
)
from contracts.limits import Limits
from extensions.stored_weights.server.base import PROVEN_BAD, SupersededError, reason_of
from extensions.stored_weights.server.factory import ChannelFactory
from extensions.stored_weights.server.joined_channel import JoinedChannel
from extensions.stored_weights.store.errors import StoreError
from inference_adapters.capabilities import capabilities
from inference_adapters.finite_weights import NotFiniteError
from inference_adapters.manifest_check import check_kv_cache, check_manifest
from inference_adapters.membership import Membership
from inference_adapters.totals import Totals
from inference_adapters.update_record import AnyUpdateRequest, UpdateRecord

log = logging.getLogger(__name__)


class WeightUpdates(Membership):
    """The control side of one server. It refuses by ContractError, and a refusal changes nothing."""

    def __init__(
        self,
        engine: InferenceEngine,
        hold_timeout_s: float,
        limits: Limits | None = None,
        channels: ChannelFactory | None = None,
    ):
        super().__init__(engine, channels or ChannelFactory())
        self.limits = limits or Limits()
        self.hold_timeout_s = hold_timeout_s
        self.totals = Totals()
        self.loaded = False
        self.version = 0
        self.weights_given_up = asyncio.Event()  # set if lost weights are not replaced within hold_timeout_s
        self._channel = JoinedChannel(self)
        self._updates: dict[int, UpdateRecord] = {}  # updates of this run, by version
        self._current: UpdateRecord | None = None  # the last update for which others had to wait
        self._served: UpdateRecord | None = None  # the update by which the weights came
        self._any_version = False  # whether a new run, whose first version may be lower, has taken over
        self._lost: str | None = None
        self._hold_timer: asyncio.TimerHandle | None = None

    async def start(self, version: int) -> None:
        await self.engine.start(version)
        self.version = version
        self.loaded = True

    async def end_requests(self) -> None:
        """Ends every waiting request with a response, because the server is closing."""
        await self._end_joining()
        if update := self._receiving():
            await self._call_off(update, "the server is closing")
        await self._channel.leave("the server is closing")
        if self.loaded:
            await self.engine.abort_requests()

    async def close(self) -> None:
        """Leaves the weight channel, and deletes what was fetched unless the directory is to be kept."""
        await self._end_joining()
        await self._channel.leave("the server is closing")
        self.channels.close()

    # --- what the server reports ------------------------------------------------------------------

    def health(self) -> Health:
        if not self.loaded:
            return Health(status="loading", reason="the model is being loaded")
        if self._lost:
            return Health(status="unhealthy", reason=self._lost)
        return self.engine.health()

    def require_ready(self) -> None:
        """Raises ContractError unless new requests are accepted.

        Requests that an update delays are accepted; the engine queues them.
        """
        health = self.health()
        if health.status != "ready":
            raise ContractError(ErrorCode.UNHEALTHY, f"{health.status}: {health.reason}")

    def require_loaded(self) -> None:
        if not self.loaded:
            raise ContractError(ErrorCode.UNHEALTHY, "loading: the model is being loaded")

    def contract(self) -> ContractInfo:
        state = "receiving" if self._receiving() else "lost" if self._lost else "live"
        declared = self.engine.info().model_dump() | {"capabilities": capabilities(self.engine)}
        return ContractInfo(
            **declared,
            run=self.run,
            group=self._group,
            channel=self._channel.info(),
            weights=self._weights_info(state),
            process=self.engine.process(),
            limits=self.limits,
        )

    def _weights_info(self, state: str) -> WeightsInfo:
        if self._served is None:
            return WeightsInfo(version=self.version, state=state)
        run = self._served.outcome.run
        return WeightsInfo(
            version=self.version,
            state=state,
            run=run if run == self.run else None,
            digest=self._served.digest,
        )

    # --- updating ---------------------------------------------------------------------------------

    def request(self, request: AnyUpdateRequest) -> WeightUpdateAccepted:
        """Accepts an update, and starts to receive or to fetch it."""
        known = self._updates.get(request.version)
        if known and known.is_repeated_by(request):  # an HTTP retry
            return WeightUpdateAccepted()
        self._check_update(request)
        if isinstance(request, WeightUpdateRequest):
            check_manifest(request, self.engine)
            record = UpdateRecord.of(request)
            work = self.engine.receive_weights(request, record.progress)
        else:
            check_kv_cache(request.kv_cache, self.engine.info())
            record = UpdateRecord.of(request)
            work = self._channel.pull(record, request.kv_cache)
        self._current = record
        self.add(record)
        self.begin(record, work)
        return WeightUpdateAccepted()

    def add(self, record: UpdateRecord) -> None:
        """Makes the record that of its version."""
        self._updates[record.outcome.version] = record

    def begin(self, record: UpdateRecord, work: Coroutine[Any, Any, None]) -> None:
        """Runs an update whose record was added."""
        record.task = asyncio.create_task(work)
        record.task.add_done_callback(partial(self._ended, record))

    def _check_update(self, request: AnyUpdateRequest) -> None:
        if self._joining and request.run in (self.run, self._joining.request.run):
            raise ContractError(
                ErrorCode.JOINING, f"epoch {self._joining.request.epoch} is still being joined"
            )
        self._check_run(request.run)
        epoch = self._epoch_for(request)
        if request.epoch != epoch:
            raise ContractError(
                ErrorCode.STALE_EPOCH, f"epoch {request.epoch} is not the current one, {epoch}"
            )
        if update := self._receiving():
            raise ContractError(
                ErrorCode.UPDATE_IN_PROGRESS, f"version {update.outcome.version} is being received"
            )
        if self.is_older(request.version):
            raise ContractError(
                ErrorCode.STALE_VERSION,
                f"version {request.version} is lower than {self.version}, the live one",
            )

    def _epoch_for(self, request: AnyUpdateRequest) -> int:
        """Returns the epoch of the group or channel. Raises ContractError unless it carries such updates."""
        if not isinstance(request, WeightUpdateRequest):
            return self._channel.epoch_for_requests()
        if self._group is None:
            raise ContractError(ErrorCode.NO_GROUP, "this server is in no weight group: join one first")
        return self._group.epoch

    def is_older(self, version: int) -> bool:
        """Returns whether a version is lower than the live one, and must not replace it."""
        return version < self.version and not self._any_version

    def serves(self, run: str, manifest_sha256: str) -> bool:
        """Returns whether the weights are those of a stored version of a run."""
        served = self._served
        return served is not None and (served.outcome.run, served.manifest_sha256) == (run, manifest_sha256)

    def occupy(self, record: UpdateRecord) -> None:
        """Makes other updates and joins wait for this one."""
        record.applying = True
        self._current = record

    def _ended(self, update: UpdateRecord, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.end(update, update.called_off or "cancelled", update.superseded)
        elif error := task.exception():  # a failed update ends its group, not the server
            is_plain = isinstance(error, StoreError)  # of a source or a manifest: its message says it all
            log.warning(
                "weight update %d failed: %s",
                update.outcome.version,
                reason_of(error),
                exc_info=None if is_plain else error,
            )
            update.hopeless = isinstance(error, NotFiniteError)
            self.end(update, reason_of(error), isinstance(error, (*PROVEN_BAD, SupersededError)))
        else:
            self._live(update)
            self._count(update)

    def end(self, update: UpdateRecord, why: str, skipped: bool = False) -> None:
        """Ends an update that is not live. `skipped`: it is superseded, or proven bad."""
        if skipped:
            update.outcome.state = "skipped"
            update.outcome.error = why
        else:
            self._failed(update, why)
        self._count(update)

    def _count(self, update: UpdateRecord) -> None:
        self.totals.add_update(update.status(), time.monotonic() - update.accepted_at)
        update.task = None
        update.ended.set()

    def _live(self, update: UpdateRecord) -> None:
        update.outcome.state = "live"
        update.outcome.error = None
        self.version = update.outcome.version
        self._served = update
        self._any_version = False
        self._lost = None
        self.weights_given_up.clear()
        if self._hold_timer:
            self._hold_timer.cancel()

    def _failed(self, update: UpdateRecord, why: str) -> None:
        update.outcome.state = "failed"
        update.outcome.error = why
        if update.manifest_sha256 is None:  # one member's failure breaks the group for all
            self.engine.leave_group()
            self._group = None
        if update.progress.touched and not self._lost:
            self._lost = f"the weights were lost in the update to version {update.outcome.version}: {why}"
            loop = asyncio.get_running_loop()
            self._hold_timer = loop.call_later(self.hold_timeout_s, self.weights_given_up.set)

    def _forget_updates(self, any_version: bool) -> None:
        self._updates.clear()
        self._current = None
        self._any_version = any_version

    def _receiving(self) -> UpdateRecord | None:
        return self._current if self._current and self._current.occupies else None

    # --- status and abort -------------------------------------------------------------------------

    async def status(self, version: int, wait_s: float) -> WeightUpdateStatus:
        """Returns the state of the update to `version`, after waiting up to `wait_s` for its end."""
        update = self._updates.get(version)
        if update is None:
            raise ContractError(ErrorCode.NOT_FOUND, f"version {version} was never requested in this run")
        await update.wait(wait_s)
        return update.status()

    async def abort(self, request: AbortWeightUpdateRequest) -> WeightUpdateStatus:
        """Cancels an update. Returns how it ended, even if it had ended before."""
        self._check_run(request.run)
        update = self._updates.get(request.version)
        if update is None or update.outcome.epoch != request.epoch:
            raise ContractError(
                ErrorCode.NOT_FOUND, f"version {request.version} was never requested in epoch {request.epoch}"
            )
        await self._call_off(update, "called off by the trainer")
        return update.status()

    async def _call_off(self, update: UpdateRecord, why: str) -> None:
        """Cancels an update and waits for its end. An update that is being applied is not cancelled."""
        self.give_up(update, why)
        await update.wait()

    def give_up(self, update: UpdateRecord, why: str, superseded: bool = False) -> None:
        """Cancels an update. One that is being applied goes on."""
        if update.receiving and update.task is None:  # a followed version that was not begun
            self.end(update, why, superseded)
        else:
            update.call_off(why, superseded)
