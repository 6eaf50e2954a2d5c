"""Broken servers. G2: in flight."""

from collections.abc import AsyncIterator
from dataclasses import replace

from contracts.inference import (
    Health,
    TokenDelta,
)
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G2", "ended with 'abort'", also="G5 G7 G8")
class DropsRequestsInFlight(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        for sequence in self._sequences:
            sequence.aborted = True


@mutant("G2", "had tokens of version 1", also="G5")
class RestartsRequestsInFlight(ScriptedEngine):
    async def _generate(self, prompt, sampling) -> AsyncIterator[TokenDelta]:
        restarted = True
        while restarted:
            version, restarted, deltas = self._version, False, []
            async for delta in super()._generate(prompt, sampling):
                deltas.append(delta)
                if restarted := self._version != version:
                    break
        for delta in deltas:
            yield delta


@mutant("G2", "labelled 3|labelled 4|labelled 5: log-probability", also="G5")
class IgnoresRecompute(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, "keep")


@mutant("G2", "sampled by version 1", also="G5 G7")
class FinishesWithOldWeights(ScriptedEngine):
    """Offers only `keep`, and keeps more than keys and values; the labels change as they should."""

    def info(self):
        return super().info().model_copy(update={"kv_cache": ["keep"]})

    async def _generate(self, prompt, sampling):
        old = ScriptedEngine(self.token_delay_s)
        old._generator = self._generator
        old._weights = {name: weight.clone() for name, weight in self._weights.items()}
        self._sequences.add(running := object())
        try:
            async for delta in old._generate(prompt, sampling):
                yield replace(delta, versions=[self._version for _ in delta.versions])
        finally:
            self._sequences.discard(running)

    async def abort_requests(self):
        pass


@mutant("G2", "no answer while the update was staged", also="G7")
class StopsForAStagedTransfer(ScriptedEngine):
    async def receive_weights(self, request, progress):
        await self._set_paused(True)
        try:
            await super().receive_weights(request, progress)
        finally:
            await self._set_paused(False)


@mutant("G2", "503", also="G8")
class RefusesWhatArrivesMeanwhile(ScriptedEngine):
    receiving = False

    def health(self):
        if self.receiving:
            return Health(status="unhealthy", reason="receiving weights")
        return super().health()

    async def receive_weights(self, request, progress):
        self.receiving = True
        try:
            await super().receive_weights(request, progress)
        finally:
            self.receiving = False
