"""Broken servers that were written from the contract's text alone: updates that fail."""

import asyncio
import time

import torch

from contracts.errors import ContractError, ErrorCode
from inference_adapters import embedded
from inference_adapters.membership import Membership
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.weight_updates import WeightUpdates
from tests.conformance.broken_servers.mutants import mutant

WRONG = "greedy token|log-probability"


@mutant("G7", "touched|untouched|greedy token|log-probability", part="infinities")
class AppliesEachBucketAndSaysUntouched(ScriptedEngine):
    def info(self):
        info = super().info()
        return info.model_copy(update={"capabilities": [c for c in info.capabilities if c != "staged"]})

    async def receive_weights(self, request, progress):
        async with self._generation_paused(progress):
            await super().receive_weights(request, progress)

    def buffered(self, bucket):
        for name, tensor in bucket.items():
            self._weights[name].copy_(tensor)
        return bucket


@mutant("G7", "live|greedy token|log-probability", part="infinities")
def takes_what_is_not_finite_in_bfloat16(options):
    right = embedded.why_not_finite
    embedded.why_not_finite = lambda bucket: right(
        {name: t for name, t in bucket.items() if t.dtype != torch.bfloat16}
    )


RIGHT = embedded.why_not_finite


@mutant("G7", "live|greedy token|log-probability", part="infinities")
class LooksAtTheFirstBucketOnly(ScriptedEngine):
    async def receive_weights(self, request, progress):
        first = request.parameters[0].name
        right = RIGHT
        embedded.why_not_finite = lambda bucket: right(bucket) if first in bucket else None
        await super().receive_weights(request, progress)


@mutant("G7", "live|greedy token|log-probability", part="infinities")
def takes_infinities(options):
    def why(bucket):
        bad = [n for n, t in bucket.items() if t.is_floating_point() and t.float().sum().isnan()]
        return f"{bad[0]} has a NaN" if bad else None

    embedded.why_not_finite = why


@mutant("G7", "500", part="infinities")
def fails_to_say_what_is_not_finite(options):
    right = WeightUpdates.status

    async def status(self, version, wait_s):
        found = await right(self, version, wait_s)
        if found.error and "ValueError" in found.error:
            raise ValueError("Out of range float values are not JSON compliant")
        return found

    WeightUpdates.status = status


@mutant("G7", "receiving|no answer|after", part="polls", hangs=True)
class CannotCancelABroadcast(ScriptedEngine):
    """Waits for a silent peer for half an hour, whatever the timeout is."""

    async def receive_weights(self, request, progress):
        patient = request.model_copy(update={"timeout_s": 1800.0})
        task = asyncio.create_task(super().receive_weights(patient, progress))
        cancelled = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                cancelled = True
        task.result()
        if cancelled:
            raise asyncio.CancelledError


@mutant("G7", "no answer", part="polls", hangs=True)
class StaysPausedAfterACallOff(ScriptedEngine):
    """The receiving thread holds the pause until the timeout of the aborted update."""

    async def receive_weights(self, request, progress):
        started = time.monotonic()
        holds = request.receive == "paused"
        if holds:
            await self._set_paused(True)
        try:
            await super().receive_weights(request, progress)
        except asyncio.CancelledError:
            if holds:
                left = max(0, started + request.timeout_s - time.monotonic())
                self._loop.call_later(left, lambda: asyncio.ensure_future(self._set_paused(False)))
            raise
        except BaseException:
            await self._set_paused(False)
            raise


@mutant("G7", "update_in_progress", part="polls")
def keeps_the_lock_of_what_was_called_off(options):
    cancel_and_wait = UpdateLedger.cancel_and_wait
    check_join = Membership._check_join

    async def call(self, update, why):
        held = update.receiving and "trainer" in why
        await cancel_and_wait(self, update, why)
        if held:
            self.locked_until = time.monotonic() + update.timeout_s

    def check(self, request):
        check_join(self, request)
        if time.monotonic() < getattr(self._ledger, "locked_until", 0):
            raise ContractError(ErrorCode.UPDATE_IN_PROGRESS, "an update is being received")

    UpdateLedger.cancel_and_wait = call
    Membership._check_join = check
