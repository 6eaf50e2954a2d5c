"""Decides which weight group and which weight update a server accepts, and records how each ended.

It is the state machine that every adapter shares: run, takeover, epoch and version; validation before any
collective; idempotent retries; waiting; cancelling. It knows no HTTP and no tensors: `control_routes` calls
it, and an `InferenceEngine` carries out its decisions. All of it runs in one event loop.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from dataclasses import dataclass, field
from functools import partial

from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    AbortWeightUpdateRequest,
    ContractInfo,
    GroupInfo,
    Health,
    InferenceEngine,
    InitProcessGroupRequest,
    UpdateProgress,
    WeightsInfo,
    WeightUpdateAccepted,
    WeightUpdateRequest,
    WeightUpdateStatus,
)
from contracts.limits import Limits
from inference_adapters.capabilities import capabilities
from inference_adapters.manifest_check import check_manifest
from inference_adapters.totals import Totals

log = logging.getLogger(__name__)
NOTICE_S = 1.0  # additional time to notice that a timed-out update has ended


@dataclass
class _Join:
    """A weight group that is being joined, or was joined."""

    request: InitProcessGroupRequest
    task: asyncio.Task[list[int]]


@dataclass
class _Update:
    """An accepted weight update, and its state."""

    fingerprint: str
    parameters: int  # their number
    timeout_s: float
    outcome: WeightUpdateStatus
    progress: UpdateProgress = field(default_factory=UpdateProgress)
    accepted_at: float = field(default_factory=time.monotonic)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    # Only while receiving, because the traceback of a failed task would keep its buffers alive.
    task: asyncio.Task[None] | None = None
    called_off: str | None = None  # why the update was cancelled

    @property
    def receiving(self) -> bool:
        return self.outcome.state == "receiving"

    def is_repeated_by(self, request: WeightUpdateRequest) -> bool:
        """Returns whether `request` repeats the accepted one. It hashes no manifest of another length."""
        return len(request.parameters) == self.parameters and _fingerprint(request) == self.fingerprint

    async def wait(self, timeout_s: float | None = None) -> None:
        """Waits until the update has ended, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), timeout_s)

    def status(self) -> WeightUpdateStatus:
        p = self.progress
        figures = {"bytes": p.bytes, "transfer_s": p.transfer_s, "paused_s": p.paused_s, "touched": p.touched}
        return self.outcome.model_copy(update=figures)


class WeightUpdates:
    """The control side of one server. It refuses by ContractError, and a refusal changes nothing."""

    def __init__(self, engine: InferenceEngine, hold_timeout_s: float, limits: Limits | None = None):
        self.engine = engine
        self.limits = limits or Limits()
        self.hold_timeout_s = hold_timeout_s
        self.totals = Totals()
        self.loaded = False
        self.version = 0
        self.run: str | None = None
        self.weights_given_up = asyncio.Event()  # set if lost weights are not replaced within hold_timeout_s
        self._epoch: int | None = None  # of the last group joined in this run, even if it has ended
        self._group: GroupInfo | None = None
        self._joined: _Join | None = None
        self._joining: _Join | None = None
        self._updates: dict[int, _Update] = {}  # updates of this run, by version
        self._current: _Update | None = None  # the last accepted update
        self._any_version = False  # whether a new run, whose first version may be lower, has taken over
        self._lost: str | None = None
        self._hold_timer: asyncio.TimerHandle | None = None

    async def start(self, version: int) -> None:
        await self.engine.start(version)
        self.version = version
        self.loaded = True

    async def end_requests(self) -> None:
        """Ends every waiting request with a response, because the server is closing."""
        if self._joining:
            self._joining.task.cancel()
        if update := self._receiving():
            await self._call_off(update, "the server is closing")
        if self.loaded:
            await self.engine.abort_requests()

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
            weights=WeightsInfo(version=self.version, state=state),
            process=self.engine.process(),
            limits=self.limits,
        )

    # --- joining ----------------------------------------------------------------------------------

    async def join(self, request: InitProcessGroupRequest) -> list[int]:
        """Joins a newer weight group and returns this server's ranks."""
        while True:
            for known in (self._joining, self._joined):
                if known and known.request == request:  # an HTTP retry
                    return await self._joined_ranks(known)
            self._check_join(request)
            update = self._receiving()
            if update is None:
                break
            await self._end_of(update, request)  # then all checks are repeated
        if self._joining:
            self._joining.task.cancel()
        self._joining = _Join(request, asyncio.create_task(self._join(request)))
        return await self._joined_ranks(self._joining)

    async def _joined_ranks(self, join: _Join) -> list[int]:
        await asyncio.wait([join.task])  # not cancelled with the HTTP request that started it
        if join.task.cancelled():
            raise ContractError(
                ErrorCode.STALE_EPOCH,
                f"epoch {join.request.epoch} was given up for a newer one, or the server closes",
            )
        return join.task.result()

    def _check_join(self, request: InitProcessGroupRequest) -> None:
        # A group that is still forming already claims the server.
        run = self.run
        epoch = self._epoch
        if self._joining:
            run = self._joining.request.run
            epoch = self._joining.request.epoch
        if run not in (None, request.run) and not request.takeover:
            raise ContractError(ErrorCode.OTHER_RUN, f"this server belongs to run {run}, not {request.run}")
        if run == request.run and epoch is not None and request.epoch <= epoch:
            raise ContractError(
                ErrorCode.STALE_EPOCH, f"epoch {request.epoch} is not newer than {epoch}, the current one"
            )
        info = self.engine.info()
        if request.backend not in info.backends:
            raise ContractError(
                ErrorCode.UNSUPPORTED_BACKEND, f"{request.backend}: this server offers {info.backends}"
            )
        if request.backend == "nccl" and request.nccl_version != info.nccl_version:
            raise ContractError(
                ErrorCode.NCCL_MISMATCH,
                f"NCCL {request.nccl_version} (trainer) and {info.nccl_version} (server) cannot form a "
                "group: install the same version on both ends",
            )
        if request.rank_offset + info.ranks > request.world_size:
            raise ContractError(
                ErrorCode.INVALID_REQUEST,
                f"world_size {request.world_size} cannot hold {info.ranks} rank(s) from rank_offset "
                f"{request.rank_offset} on",
            )

    async def _end_of(self, update: _Update, request: InitProcessGroupRequest) -> None:
        """Waits for the current update, for at most its own timeout.

        A takeover does not wait, because it means that the other run is over.
        """
        if request.run != self.run:
            await self._call_off(update, f"run {request.run} took over")
            return
        waited_s = update.timeout_s + NOTICE_S
        await update.wait(waited_s)
        if update.receiving:
            raise ContractError(
                ErrorCode.UPDATE_IN_PROGRESS,
                f"version {update.outcome.version} is still being received after {waited_s} s",
            )

    async def _join(self, request: InitProcessGroupRequest) -> list[int]:
        try:
            ranks = await self.engine.join_group(request)
            if request.run != self.run:
                await self._change_run(request)
            self._joined = self._joining
            self._epoch = request.epoch
            self._group = GroupInfo(
                epoch=request.epoch, rank_offset=request.rank_offset, world_size=request.world_size
            )
            return ranks
        finally:
            if self._joining and self._joining.request is request:  # not replaced by a newer join
                self._joining = None

    async def _change_run(self, request: InitProcessGroupRequest) -> None:
        if self.run is not None:
            await self.engine.abort_requests()
        self.run = request.run
        self._any_version = request.takeover
        self._updates.clear()
        self._current = None

    # --- updating ---------------------------------------------------------------------------------

    def request(self, request: WeightUpdateRequest) -> WeightUpdateAccepted:
        """Accepts an update and starts to receive it."""
        known = self._updates.get(request.version)
        if known and known.is_repeated_by(request):  # an HTTP retry
            return WeightUpdateAccepted()
        self._check_update(request)
        check_manifest(request, self.engine)
        outcome = WeightUpdateStatus(run=request.run, epoch=request.epoch, version=request.version)
        update = _Update(_fingerprint(request), len(request.parameters), request.timeout_s, outcome)
        self._updates[request.version] = self._current = update
        update.task = asyncio.create_task(self.engine.receive_weights(request, update.progress))
        update.task.add_done_callback(partial(self._ended, update))
        return WeightUpdateAccepted()

    def _check_update(self, request: WeightUpdateRequest) -> None:
        if self._joining and request.run in (self.run, self._joining.request.run):
            raise ContractError(
                ErrorCode.JOINING, f"the group of epoch {self._joining.request.epoch} is still being joined"
            )
        self._check_run(request.run)
        if self._group is None:
            raise ContractError(ErrorCode.NO_GROUP, "this server is in no weight group: join one first")
        if request.epoch != self._group.epoch:
            raise ContractError(
                ErrorCode.STALE_EPOCH, f"epoch {request.epoch} is not the current one, {self._group.epoch}"
            )
        if update := self._receiving():
            raise ContractError(
                ErrorCode.UPDATE_IN_PROGRESS, f"version {update.outcome.version} is being received"
            )
        if request.version < self.version and not self._any_version:
            raise ContractError(
                ErrorCode.STALE_VERSION,
                f"version {request.version} is lower than {self.version}, the live one",
            )

    def _check_run(self, run: str) -> None:
        if self.run not in (None, run):
            raise ContractError(ErrorCode.OTHER_RUN, f"this server belongs to run {self.run}, not {run}")

    def _ended(self, update: _Update, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._failed(update, update.called_off or "cancelled")
        elif error := task.exception():  # a failed update ends its group, not the server
            log.warning("weight update %d failed", update.outcome.version, exc_info=error)
            self._failed(update, f"{type(error).__name__}: {error}")
        else:
            self._live(update)
        self.totals.add_update(update.status(), time.monotonic() - update.accepted_at)
        update.task = None
        update.ended.set()

    def _live(self, update: _Update) -> None:
        update.outcome.state = "live"
        self.version = update.outcome.version
        self._any_version = False
        self._lost = None
        self.weights_given_up.clear()
        if self._hold_timer:
            self._hold_timer.cancel()

    def _failed(self, update: _Update, why: str) -> None:
        update.outcome.state = "failed"
        update.outcome.error = why
        self.engine.leave_group()  # one member's failure breaks the group for all
        self._group = None
        if update.progress.touched and not self._lost:
            self._lost = f"the weights were lost in the update to version {update.outcome.version}: {why}"
            loop = asyncio.get_running_loop()
            self._hold_timer = loop.call_later(self.hold_timeout_s, self.weights_given_up.set)

    def _receiving(self) -> _Update | None:
        return self._current if self._current and self._current.receiving else None

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

    async def _call_off(self, update: _Update, why: str) -> None:
        """Cancels an update and waits for its end. An update that is being applied is not cancelled."""
        if update.receiving and not update.progress.touched:
            update.called_off = why
            update.progress.cancelled = True
            update.task.cancel()
        await update.wait()


def _fingerprint(request: WeightUpdateRequest) -> str:
    """Returns a hash of the request, by which retries are detected without keeping manifests."""
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()
