"""Broken servers. G1: content."""

import contextlib
from dataclasses import replace

import torch

from contracts.ipc import IpcGroup
from contracts.weights import plan_buckets
from inference_adapters import scripted
from inference_adapters.scripted import BIAS, NORM, ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant

LATE_S = 20.0  # longer than a busy machine takes for what is checked after `live`


@mutant("G1", "greedy token|log-probability", part="context")
class SwapsTwoTensors(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        swapped = dict(tensors) | {BIAS: tensors[NORM], NORM: tensors[BIAS]}
        super().apply_weights(swapped, tied, version, kv_cache)


@mutant("G1", "greedy token|log-probability", part="context")
class IgnoresTheLastBucket(ScriptedEngine):
    async def receive_weights(self, request, progress):
        self.last = {p.name for p in plan_buckets(request.parameters, request.bucket_bytes)[-1]}
        await super().receive_weights(request, progress)

    def apply_weights(self, tensors, tied, version, kv_cache):
        kept = {name: self._weights[name] for name in self.last}
        super().apply_weights(dict(tensors) | kept, tied, version, kv_cache)


@mutant("G1", "greedy token|log-probability", part="context")
class LeavesTheTiedHeadStale(ScriptedEngine):
    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.head = self._weights[scripted.EMBED].clone()

    def _logits(self, states):
        return (self._weights[NORM] * states) @ self.head.T + self._weights[scripted.HEAD_BIAS]


@mutant(
    "G1",
    "labels .* after version . was live|labelled .: log-prob",
    part="context",
)
class SaysLiveBeforeItIs(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        held = {name: tensor.clone() for name, tensor in tensors.items()}
        later = (LATE_S, super().apply_weights, held, tied, version, kv_cache)
        self._loop.call_soon_threadsafe(self._loop.call_later, *later)


@mutant("G1", "greedy token|log-probability", part="events")
class DiscardsTheVersionThatItHolds(ScriptedEngine):
    """Takes part in the broadcast, and discards the weights, even if they come from another run."""

    def apply_weights(self, tensors, tied, version, kv_cache):
        if version != self._version:
            super().apply_weights(tensors, tied, version, kv_cache)


class Repeating(ScriptedEngine):
    """Records the content of each version when it is first requested."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.seen = set()

    async def receive_weights(self, request, progress):
        self.again = request.version in self.seen
        self.seen.add(request.version)
        await super().receive_weights(request, progress)


@mutant("G1", "greedy token|log-probability", part="events")
class IgnoresAVersionOnceRequested(Repeating):
    """An aborted update has used the version number, so its repetition is mistaken for a retry."""

    def apply_weights(self, tensors, tied, version, kv_cache):
        if not self.again:
            return super().apply_weights(tensors, tied, version, kv_cache)
        self._version = version


@mutant("G1", "log-probability|greedy token", part="context")
class KeepsBiasesOfTheCheckpoint(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        bias = {BIAS: self._weights[BIAS].clone()}
        super().apply_weights(dict(tensors) | bias, tied, version, kv_cache)


@mutant("G1", "log-probability|greedy token", part="context")
class TruncatesToBfloat16(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        cut = {
            name: (t.float().view(torch.int32) & -65536).view(torch.float32) for name, t in tensors.items()
        }
        super().apply_weights(cut, tied, version, kv_cache)


@mutant("G1", "log-probability|greedy token", part="formats")
class CopiesByWayOfFloat16(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights({n: t.half() for n, t in tensors.items()}, tied, version, kv_cache)


@mutant("G1", "log-probability|greedy token", part="context")
class NeverWritesTheLastRows(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        last = self._weights[scripted.EMBED][-2:].clone()
        super().apply_weights(tensors, tied, version, kv_cache)
        self._weights[scripted.EMBED][-2:] = last


@mutant("G1", "log-probability|greedy token", part="formats")
class ClipsToTheScaleOfTheFirstUpdate(ScriptedEngine):
    """Computes the scales of quantised matrices only once."""

    largest = None

    def apply_weights(self, tensors, tied, version, kv_cache):
        matrix = tensors[scripted.WEIGHT].float()
        self.largest = self.largest or 1.2 * float(matrix.abs().max())
        clipped = dict(tensors) | {scripted.WEIGHT: matrix.clamp(-self.largest, self.largest)}
        super().apply_weights(clipped, tied, version, kv_cache)


@mutant("G1", "log-probability|greedy token", part="variants")
class SkipsAnUpdateWhoseMatricesAreEqual(ScriptedEngine):
    """Compares only the largest tensor to detect changes."""

    def apply_weights(self, tensors, tied, version, kv_cache):
        if torch.equal(tensors[scripted.EMBED].float(), self._weights[scripted.EMBED]):
            self._version = version
        else:
            super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G1", "log-probability|greedy token", part="load")
class ServesAStaleReplicaUnderLoad(ScriptedEngine):
    """Requests beyond 16 go to a replica, which swaps weights some time after `live`."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.replica = {name: weight.clone() for name, weight in self._weights.items()}

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.replica = {name: weight.clone() for name, weight in self._weights.items()}
        super().apply_weights(tensors, tied, version, kv_cache)
        fresh = {name: weight.clone() for name, weight in self._weights.items()}
        self._loop.call_soon_threadsafe(self._loop.call_later, LATE_S, self.replica.update, fresh)

    async def _generate(self, prompt, sampling):
        if len(self._sequences) < 16:
            async for delta in super()._generate(prompt, sampling):
                yield delta
            return
        other = ScriptedEngine(self.token_delay_s)
        other._weights = self.replica
        other._generator = self._generator
        self._sequences.add(running := scripted.RunningRequest([], torch.zeros(scripted.HIDDEN)))
        try:
            async for delta in other._generate(prompt, sampling):
                if running.aborted:
                    yield replace(delta, token_ids=[], logprobs=[], versions=[], finish_reason="abort")
                    return
                yield replace(delta, versions=[self._version for _ in delta.versions])
        finally:
            self._sequences.discard(running)


@mutant("G1", "off by|differ|greedy", part="lent")
def says_that_it_has_copied_what_it_has_not(options):
    right = IpcGroup._waited

    def waited(self, key, timeout_s):
        found = right(self, key, timeout_s)
        if self._rank and key.startswith("lent/"):
            self._lender.copy = lambda lent, buffer: None
        return found

    IpcGroup._waited = waited


@mutant("G1", "'live'", part="lent")
def goes_on_without_buffers_that_nobody_lent(options):
    right = IpcGroup.broadcast

    def broadcast(self, buffer, timeout_s):
        with contextlib.suppress(RuntimeError):
            right(self, buffer, timeout_s)

    IpcGroup.broadcast = broadcast
