"""The control side of `/sleep` and `/wake`: which requests are allowed, and how long others wait.

`weight_updates` has one object of it. The engine frees and allocates memory. A weight update wakes the server
too: then `update_ledger` ends the sleep.
"""

import asyncio
import time
from typing import Any

from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    InferenceEngine,
    SleepRequest,
    SleepResponse,
    WakeRequest,
    WakeResponse,
)
from inference_adapters.membership import Membership
from inference_adapters.streaming import until
from inference_adapters.update_ledger import UpdateLedger

CAPABILITY = "sleep"
SETTLE_S = 1.0  # of a server that closes


class Sleeping:
    """Puts one server to sleep, and wakes it. A refused request raises ContractError and changes nothing."""

    def __init__(
        self, engine: InferenceEngine, membership: Membership, ledger: UpdateLedger, most_queued: int
    ):
        self._engine = engine
        self._membership = membership
        self._ledger = ledger
        self._asked: SleepRequest | None = None  # the last accepted request to sleep
        self._sleep: asyncio.Task[SleepResponse] | None = None  # its response
        self._change: asyncio.Task[Any] | None = None  # the last sleep or wake: in progress, or done
        self._closing = False
        self._most_queued = most_queued  # requests, each of which holds a connection
        self._queued = 0

    @property
    def takes_requests(self) -> bool:
        """False once requests have waited too long for the server to wake."""
        return not (self.asleep and self._ledger.held.timed_out.is_set())

    @property
    def asleep(self) -> bool:
        """True from the acceptance of `/sleep` until generation resumes."""
        return not self._ledger.awake.is_set()

    async def until_awake(self) -> None:
        """Waits while the server sleeps. Raises ContractError (`asleep`) when that takes too long.

        Raises `overloaded` if so many wait that the trainer might find no connection.
        """
        if self.asleep and self._queued >= self._most_queued:
            raise ContractError(ErrorCode.OVERLOADED, "too many requests wait for the server to wake")
        self._queued += 1
        try:
            await self._until_awake()
        finally:
            self._queued -= 1
        if self._closing:
            raise ContractError(ErrorCode.UNHEALTHY, "the server is closing")

    async def _until_awake(self) -> None:
        held = self._ledger.held
        while self.asleep:
            if not await until(held.timed_out.wait(), self._ledger.awake.wait()):
                raise held.error()

    def close(self) -> None:
        """Ends the requests that wait in `until_awake`."""
        self._closing = True
        self._ledger.awake.set()

    async def settle(self) -> None:
        """Waits a moment for the end of a sleep or a wake, which a score may hold up."""
        if self._change is not None:
            await asyncio.wait([self._change], timeout=SETTLE_S)

    # --- sleep ------------------------------------------------------------------------------------

    async def sleep(self, request: SleepRequest) -> SleepResponse:
        """Pauses generation and frees memory. A repeated request gets the first response."""
        self._check(request)
        wanted = request.keep, request.requests
        is_repeated = self.asleep and wanted == (self._asked.keep, self._asked.requests)
        if is_repeated and not self._sleep.done():
            return await asyncio.shield(self._sleep)
        self._check_idle()
        if is_repeated:
            return self._sleep.result()
        if self.asleep:
            why = f"the server sleeps already, with keep {self._asked.keep}, requests {self._asked.requests}"
            raise ContractError(ErrorCode.INVALID_REQUEST, why)
        self._asked = request
        self._ledger.begin_sleep()
        self._sleep = self._change = asyncio.create_task(self._fall_asleep(request))
        return await asyncio.shield(self._sleep)  # goes on if the client leaves

    async def _fall_asleep(self, request: SleepRequest) -> SleepResponse:
        started = time.monotonic()
        try:
            released = await self._engine.sleep(request)
        except BaseException as error:
            self._ledger.end_sleep()
            if self._engine.health().status == "unhealthy":
                self._ledger.lose(f"the weights were lost in a sleep: {error!r}")
            raise
        self._ledger.fall_asleep(dropped=request.keep == "nothing")
        if request.requests == "abort":
            await self._engine.abort_requests()
        return SleepResponse(
            released_bytes=released,
            held=self._held() if request.requests == "hold" else 0,
            hold_timeout_s=self._ledger.held.timeout_s,
            seconds=time.monotonic() - started,
        )

    def _held(self) -> int:
        process = self._engine.process()
        return process.running + process.waiting

    # --- wake -------------------------------------------------------------------------------------

    async def wake(self, request: WakeRequest) -> WakeResponse:
        """Resumes generation with the weights that were kept. Does nothing if the server is awake."""
        self._check(request)
        self._check_idle()
        if not self.asleep:
            return WakeResponse(version=self._ledger.version, seconds=0.0)
        if self._ledger.dropped:
            raise ContractError(ErrorCode.WEIGHTS_DROPPED, "the server kept nothing: send a weight update")
        self._change = asyncio.create_task(self._wake())
        return await asyncio.shield(self._change)

    async def _wake(self) -> WakeResponse:
        started = time.monotonic()
        await self._engine.wake()
        self._ledger.end_sleep()
        return WakeResponse(version=self._ledger.version, seconds=time.monotonic() - started)

    # --- both -------------------------------------------------------------------------------------

    def _check(self, request: SleepRequest | WakeRequest) -> None:
        if CAPABILITY not in self._engine.info().capabilities:
            raise ContractError(ErrorCode.UNSUPPORTED_SLEEP, "this server does not sleep")
        self._membership.check_no_join(request.run)
        self._membership.check_run(request.run)
        self._membership.check_epoch(request.epoch)

    def _check_idle(self) -> None:
        if update := self._ledger.exclusive:
            why = f"version {update.outcome.version} is being received"
            raise ContractError(ErrorCode.UPDATE_IN_PROGRESS, why)
        self.check_unchanging()
        if self._ledger.lost:
            raise ContractError(ErrorCode.UNHEALTHY, self._ledger.lost)

    def check_unchanging(self) -> None:
        """Raises ContractError while a sleep or a wake is under way."""
        if self._change is not None and not self._change.done():
            raise ContractError(ErrorCode.UPDATE_IN_PROGRESS, "the server is falling asleep, or is waking")
