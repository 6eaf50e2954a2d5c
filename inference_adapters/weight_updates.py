"""The control state machine of a server: accepts, runs, reports and cancels weight updates.

Every adapter shares it: run, epoch and version, validation before any collective, and idempotent retries.
`control_routes` calls it, and the `InferenceEngine` moves the weights. This module must not depend on HTTP or
tensors. All of it runs in one event loop.
"""

from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    AbortWeightUpdateRequest,
    ContractInfo,
    Health,
    InferenceEngine,
    TokenEngine,
    WeightUpdateAccepted,
    WeightUpdateRequest,
    WeightUpdateStatus,
)
from contracts.limits import Limits
from inference_adapters.channel import WeightChannels
from inference_adapters.manifest_check import check_kv_cache, check_manifest
from inference_adapters.membership import Membership
from inference_adapters.sleeping import Sleeping
from inference_adapters.totals import Totals
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import AnyUpdateRequest, UpdateRecord

APP_CAPABILITIES = ("metrics", "leave_group")  # the app implements them for every engine
TOKEN_ENGINE_CAPABILITIES = ("stop_strings", "openai", "arrays", "as_completed")


class WeightUpdates:
    """The control side of one server. A refused request raises ContractError and changes nothing.

    hold_timeout_s: time after which requests fail if the weights were lost, or the server sleeps. A run sets
        it, by `pipelinerl.training.update_times.hold_timeout_s`.
    limits: limits that are reported, and enforced on connections, headers and bodies; by default the
        contract's. All other limits are always the contract's.
    channels: weight channels of the server; by default none.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        hold_timeout_s: float = 120.0,
        limits: Limits | None = None,
        channels: WeightChannels | None = None,
    ):
        self.engine = engine
        self.limits = limits or Limits()
        self.totals = Totals()
        self.loaded = False
        self.ledger = UpdateLedger(hold_timeout_s, self.totals)
        self.membership = Membership(engine, self.ledger, channels)
        most_queued = self.limits.max_connections // 2
        self.sleeping = Sleeping(engine, self.membership, self.ledger, most_queued)

    async def start(self, version: int) -> None:
        await self.engine.start(version)
        self.ledger.version = version
        self.loaded = True

    async def end_requests(self) -> None:
        """Ends every open request with a response, because the server is closing."""
        await self.membership.end_joining()
        if update := self.ledger.exclusive:
            await self.ledger.cancel_and_wait(update, "the server is closing")
        await self.membership.leave_channel("the server is closing")
        if self.loaded:
            await self.engine.abort_requests()
        await self.sleeping.settle()
        self.sleeping.close()

    # --- reports ----------------------------------------------------------------------------------

    def capabilities(self) -> list[str]:
        """Returns the capabilities of the engine, of the app and of the weight channels."""
        declared = self.engine.info().capabilities
        added = APP_CAPABILITIES
        if isinstance(self.engine, TokenEngine):
            added = (*TOKEN_ENGINE_CAPABILITIES, *added)
        if self.membership.channels is not None:
            added = (*added, *self.membership.channels.capabilities(self.engine))
        return [*declared, *(word for word in added if word not in declared)]

    def health(self) -> Health:
        if not self.loaded:
            return Health(status="loading", reason="the model is being loaded")
        if self.ledger.lost:
            return Health(status="unhealthy", reason=self.ledger.lost)
        health = self.engine.health()
        if health.status == "ready" and self.sleeping.asleep:
            reason = None if self.sleeping.takes_requests else "requests have waited too long"
            return Health(status="asleep", reason=reason)
        return health

    async def until_ready(self) -> None:
        """Waits while the server sleeps. Raises ContractError unless new requests are accepted.

        During an update they are: they wait in the engine.
        """
        await self.sleeping.until_awake()
        health = self.health()
        if health.status != "ready":
            raise ContractError(ErrorCode.UNHEALTHY, f"{health.status}: {health.reason}")

    def require_loaded(self) -> None:
        if not self.loaded:
            raise ContractError(ErrorCode.UNHEALTHY, "loading: the model is being loaded")

    def contract(self) -> ContractInfo:
        member = self.membership
        declared = self.engine.info().model_dump() | {"capabilities": self.capabilities()}
        return ContractInfo(
            **declared,
            run=member.run,
            group=member.group,
            channel=member.channel.info() if member.channel else None,
            weights=self.engine.weights_info(self.ledger.weights_info(member.run)),
            process=self.engine.process(),
            limits=self.limits,
        )

    # --- updating ---------------------------------------------------------------------------------

    def request(self, request: AnyUpdateRequest) -> WeightUpdateAccepted:
        """Accepts an update, and starts to receive or fetch it."""
        known = self.ledger.get(request.version)
        if known and known.is_repeated_by(request) and (known.receiving or not self.sleeping.asleep):
            return WeightUpdateAccepted()  # an HTTP retry; it wakes a server that sleeps
        self._check_update(request)
        if isinstance(request, WeightUpdateRequest):
            check_manifest(request, self.engine)
            record = UpdateRecord.of(request)
            work = self.engine.receive_weights(request, record.progress)
            self.ledger.add(record)
            # The failure of one member breaks the group for all.
            self.ledger.begin(record, work, on_failure=self.membership.leave_group)
        else:
            check_kv_cache(request.kv_cache, self.engine.info())
            record = UpdateRecord.of(request)
            work = self.membership.channel.pull(record, request.kv_cache)
            self.ledger.add(record)
            self.ledger.begin(record, work)
        return WeightUpdateAccepted()

    def _check_update(self, request: AnyUpdateRequest) -> None:
        self.membership.check_no_join(request.run)
        self.membership.check_run(request.run)
        self.sleeping.check_unchanging()
        is_for_group = isinstance(request, WeightUpdateRequest)
        epoch = self.membership.epoch_of_group() if is_for_group else self.membership.epoch_of_channel()
        if request.epoch != epoch:
            raise ContractError(
                ErrorCode.STALE_EPOCH, f"epoch {request.epoch} is not the current one, {epoch}"
            )
        if update := self.ledger.exclusive:
            raise ContractError(
                ErrorCode.UPDATE_IN_PROGRESS, f"version {update.outcome.version} is being received"
            )
        if self.ledger.is_older(request.version):
            raise ContractError(
                ErrorCode.STALE_VERSION,
                f"version {request.version} is lower than {self.ledger.version}, the live one",
            )

    # --- status and abort -------------------------------------------------------------------------

    async def status(self, version: int, wait_s: float) -> WeightUpdateStatus:
        """Waits up to `wait_s` for the end of the update to `version`, and returns its state."""
        update = self.ledger.get(version)
        if update is None:
            raise ContractError(ErrorCode.NOT_FOUND, f"version {version} was never requested in this run")
        await update.wait(wait_s)
        return update.status()

    async def abort(self, request: AbortWeightUpdateRequest) -> WeightUpdateStatus:
        """Cancels an update, and returns its final state."""
        self.membership.check_run(request.run)
        update = self.ledger.get(request.version)
        if update is None or update.outcome.epoch != request.epoch:
            raise ContractError(
                ErrorCode.NOT_FOUND, f"version {request.version} was never requested in epoch {request.epoch}"
            )
        await self.ledger.cancel_and_wait(update, "called off by the trainer")
        return update.status()
