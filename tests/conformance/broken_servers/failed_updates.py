"""Broken servers. G7: updates that are repeated, that fail, and that requests wait for."""

import asyncio

from contracts.inference import WeightUpdateStatus
from inference_adapters import embedded, membership
from inference_adapters.membership import Membership
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateRecord
from inference_adapters.weight_updates import WeightUpdates
from tests.conformance.broken_servers.mutants import mutant

LATE_S = 40.0  # after the last bucket; the kit allows its timeout and ten seconds, 12 together


@mutant("G7", "greedy token|log-probability", part="same-version")
class ThrowsTheLiveVersionAway(ScriptedEngine):
    """Takes part in the broadcast, and keeps its own weights."""

    def apply_weights(self, tensors, tied, version, kv_cache):
        if version != self._version:
            super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G7", "greedy token|log-probability|labels", part="takeover-in-update")
class KeepsHalfOfAFailedUpdate(ScriptedEngine):
    """Mistakes a tensor from before the failure for one of the repetition."""

    kept: dict = {}

    def buffered(self, bucket):
        fresh = {name: self.kept.get((name,), tensor) for name, tensor in bucket.items()}
        self.kept.update({(name,): tensor.clone() for name, tensor in bucket.items()})
        return fresh

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.kept.clear()
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G7", "no answer to POST /v1", part="killed", hangs=True)
class StaysPausedAfterAFailure(ScriptedEngine):
    async def receive_weights(self, request, progress):
        try:
            await super().receive_weights(request, progress)
        except RuntimeError:
            await self._set_paused(True)
            raise


@mutant("G7", "no answer|'receiving'", part="stalled")
class WatchesFromTheFirstBucketOn(ScriptedEngine):
    async def receive_weights(self, request, progress):
        patient = request.model_copy(update={"timeout_s": 600.0})
        await super().receive_weights(patient, progress)


@mutant("G7", "live|greedy token|log-probability", part="infinities")
def takes_what_is_not_finite(options):
    embedded.why_not_finite = lambda bucket: None


@mutant("G7", "had no answer", part="polls")
def notices_the_end_when_the_question_ends(options):
    async def wait(self, timeout_s=None):
        if timeout_s:
            await asyncio.sleep(timeout_s if self.receiving and timeout_s > 30 else 0)
        await right(self, timeout_s)

    right = UpdateRecord.wait
    UpdateRecord.wait = wait


@mutant("G7", "GET /weight_update/.* after", part="polls")
def waits_longer_than_it_is_told(options):
    right = WeightUpdates.status

    async def status(self, version, wait_s) -> WeightUpdateStatus:
        return await right(self, version, wait_s and 60.0)

    WeightUpdates.status = status


@mutant("G7", "other requests were answered", part="polls")
def waits_twenty_seconds_longer_than_it_is_told(options):
    right = WeightUpdates.status

    async def status(self, version, wait_s) -> WeightUpdateStatus:
        return await right(self, version, wait_s and wait_s + 20.0)

    WeightUpdates.status = status


@mutant("G7", "no answer to POST /abort_weight_update", part="polls")
def calls_off_too_late(options):
    right = WeightUpdates.abort

    async def abort(self, request):
        await asyncio.sleep(LATE_S)
        return await right(self, request)

    WeightUpdates.abort = abort


@mutant("G7", "POST /init_process_group: no answer", part="slow-trainer")
def lets_joins_wait_for_the_whole_update(options):
    membership.NOTICE_S = 60.0


@mutant("G7", "'receiving'", part="stalled")
def reports_a_failure_late(options):
    """It waits for the end whatever it is told, which comes at last."""
    right = WeightUpdates.status

    async def status(self, version, wait_s) -> WeightUpdateStatus:
        return await right(self, version, wait_s and 60.0)

    async def receive(self, request, progress):
        try:
            await right_receive(self, request, progress)
        except RuntimeError:
            await asyncio.sleep(LATE_S - request.timeout_s)
            raise

    right_receive = ScriptedEngine.receive_weights
    ScriptedEngine.receive_weights = receive
    WeightUpdates.status = status


@mutant("G7", "no answer to POST /init_process_group|409|join", part="forming-group")
def joins_one_group_after_the_other(options):
    right = Membership.join

    async def join(self, request):
        if self._joining and self._joining.request != request:
            await asyncio.wait([self._joining.task])
        return await right(self, request)

    Membership.join = join


@mutant("G7", "lost|receiving|/contract says", part="infinities")
def says_lost_after_any_failure(options):
    right = WeightUpdates.contract

    def contract(self):
        info = right(self)
        last = self.ledger._current
        if last and last.outcome.state == "failed":
            info = info.model_copy(update={"weights": info.weights.model_copy(update={"state": "lost"})})
        return info

    WeightUpdates.contract = contract


@mutant("G7", "/contract says .*version=", part="infinities")
def counts_the_version_when_it_is_requested(options):
    right = UpdateLedger._record_failed

    def failed(self, update, why):
        right(self, update, why)
        self.version = update.outcome.version

    UpdateLedger._record_failed = failed


@mutant("G7", "requests of .* ended|length|greedy token|abort", part="killed")
class EndsRequestsWhenAnUpdateFails(ScriptedEngine):
    async def receive_weights(self, request, progress):
        try:
            await super().receive_weights(request, progress)
        except RuntimeError:
            await self.abort_requests()
            raise
