"""Broken servers. G1: content."""

from contracts.weights import plan_buckets
from inference_adapters import scripted
from inference_adapters.scripted import BIAS, NORM, ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G1", "greedy token|log-probability", also="G2 G3 G4 G5 G6 G7 G8 G9")
class SwapsTwoTensors(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        swapped = dict(tensors) | {BIAS: tensors[NORM], NORM: tensors[BIAS]}
        super().apply_weights(swapped, tied, version, kv_cache)


@mutant("G1", "greedy token|log-probability", also="G2 G3 G4 G5 G6 G7 G8 G9")
class IgnoresTheLastBucket(ScriptedEngine):
    async def receive_weights(self, request, progress):
        self.last = {p.name for p in plan_buckets(request.parameters, request.bucket_bytes)[-1]}
        await super().receive_weights(request, progress)

    def apply_weights(self, tensors, tied, version, kv_cache):
        kept = {name: self._weights[name] for name in self.last}
        super().apply_weights(dict(tensors) | kept, tied, version, kv_cache)


@mutant("G1", "greedy token|log-probability", also="G2 G3 G4 G5 G6 G7 G8 G9")
class LeavesTheTiedHeadStale(ScriptedEngine):
    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.head = self._weights[scripted.EMBED].clone()

    def _logits(self, states):
        return (self._weights[NORM] * states) @ self.head.T + self._weights[scripted.HEAD_BIAS]


@mutant("G1", "labels .* after version . was live", also="G2 G3 G4 G5 G6 G7 G8 G9")
class SaysLiveBeforeItIs(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        held = {name: tensor.clone() for name, tensor in tensors.items()}
        later = (0.3, super().apply_weights, held, tied, version, kv_cache)
        self._loop.call_soon_threadsafe(self._loop.call_later, *later)
