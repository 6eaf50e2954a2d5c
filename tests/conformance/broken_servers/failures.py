"""Broken servers. G7: nothing waits forever."""

import asyncio

from contracts.weights import receive_weights
from inference_adapters import update_record
from inference_adapters.finite_weights import why_not_finite
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.threads import in_daemon_thread
from tests.conformance.broken_servers.mutants import mutant


@mutant("G7", "the broadcast failed|'failed'", part="slow-trainer")
class CountsTheWholeTransferAsSilence(ScriptedEngine):
    async def receive_weights(self, request, progress):
        async with asyncio.timeout(request.timeout_s):
            await super().receive_weights(request, progress)


@mutant("G7", "'version': 12345", part="slow-trainer")
def reports_another_update(options):
    right = update_record.UpdateRecord.status

    def status(self):
        return right(self).model_copy(update={"version": 12345})

    update_record.UpdateRecord.status = status


@mutant("G7", "'state': 'receiving'", part="killed")
class HangsWhenTheTrainerDies(ScriptedEngine):
    async def receive_weights(self, request, progress):
        try:
            await super().receive_weights(request, progress)
        except RuntimeError:
            await asyncio.Event().wait()


@mutant("G7", "greedy token|log-probability", part="infinities")
class SaysUntouchedAfterHalfAnUpdate(ScriptedEngine):
    async def receive_weights(self, request, progress):
        buckets = receive_weights(self._group, request.parameters, request.bucket_bytes, request.timeout_s)
        async with self._generation_paused(progress):
            while bucket := await in_daemon_thread(next, buckets, None):
                progress.bytes += sum(tensor.nbytes for tensor in bucket.values())
                progress.transfer_s += 0.001
                if why := why_not_finite(bucket):
                    raise ValueError(why)
                now = self._weights | bucket
                self.apply_weights(now, request.tied, self._version, request.kv_cache)
            self.apply_weights(self._weights, request.tied, request.version, request.kv_cache)
            progress.touched = True


@mutant(
    "G7", "broadcast of version . did not end", part="same-version"
)  # its version 1 is the one that the server already has
class SkipsTheVersionThatItHolds(ScriptedEngine):
    async def receive_weights(self, request, progress):
        if request.version != self._version:
            await super().receive_weights(request, progress)


@mutant("G7", "requests of .* tokens with length or stop", part="takeover")
class KeepsRequestsOfAnotherRun(ScriptedEngine):
    async def abort_requests(self):
        pass
