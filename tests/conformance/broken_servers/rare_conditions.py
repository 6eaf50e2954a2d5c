"""Broken servers. Faults that appear under one condition: a full context, an aborted update, many choices."""

import asyncio
from dataclasses import replace

import torch

from contracts.inference import ScoreResponse
from inference_adapters.scripted import CONTEXT, HIDDEN, ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant

BLOCK = 16


@mutant("G1", "greedy token|log-probability", part="context")
class ForgetsAllAtTheLastPosition(ScriptedEngine):
    def _logits(self, states):
        full = states.dim() == 1 and any(len(s.token_ids) == CONTEXT - 1 for s in self._sequences)
        return super()._logits(torch.zeros(HIDDEN) if full else states)


@mutant("G1", "greedy token|log-probability", part="events")
class UsesBucketsOfACalledOffUpdate(ScriptedEngine):
    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.kept = {}

    async def receive_weights(self, request, progress):
        self.version_received = request.version
        await super().receive_weights(request, progress)
        self.kept.clear()

    def buffered(self, bucket):
        kept = self.kept.setdefault(self.version_received, {})
        for name, tensor in bucket.items():
            kept.setdefault(name, tensor.clone())
        return bucket

    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(dict(tensors) | self.kept.get(version, {}), tied, version, kv_cache)


@mutant("G5", "scored by version", part="scores")
class ScoresByTheWeightsOfSeveralVersions(ScriptedEngine):
    async def score(self, request):
        logprobs = []
        for sequence in request.sequences:
            one = await super().score(request.model_copy(update={"sequences": [sequence]}))
            logprobs += one.logprobs
            await asyncio.sleep(0.001)
        return ScoreResponse(logprobs=logprobs, version=self._version)


class Blocks(ScriptedEngine):
    """A server that keeps the state after each full block of a prompt, and continues from the last one."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.cache = {}

    def _states(self, token_ids):
        known = [end for end in self.ends(token_ids) if tuple(token_ids[:end]) in self.cache]
        end = max(known, default=0)
        state = self.cache[tuple(token_ids[:end])] if end else torch.zeros(HIDDEN)
        states = [torch.zeros(HIDDEN)] * end
        for position in range(end, len(token_ids)):
            state = self._advance(state, token_ids[position])
            states.append(state)
        self.keep({tuple(token_ids[:e]): states[e - 1] for e in self.ends(token_ids) if e > end})
        return torch.stack(states)

    def ends(self, token_ids):
        return range(BLOCK, len(token_ids), BLOCK)

    def keep(self, blocks):
        self.cache |= blocks


@mutant("G3", "greedy token|log-probability", part="updates")
class ReleasesOldBlocksIntoTheCache(Blocks):
    """An update empties the cache, but requests in flight return their blocks to it when they end."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.read = {}

    def keep(self, blocks):
        self.read |= blocks

    async def _generate(self, prompt, sampling):
        blocks = {}
        async for delta in super()._generate(prompt, sampling):
            if not blocks:
                known = self.cache | self.read
                blocks = {end: known.get(tuple(prompt[:end])) for end in self.ends(prompt)}
            if delta.finish_reason:
                old = {tuple(prompt[:end]): state for end, state in blocks.items() if state is not None}
                self.cache |= old
            yield delta

    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        self.cache.clear()
        self.read.clear()


@mutant("G3", "greedy token|log-probability", part="updates")
class EmptiesTheCacheBeforeAStagedTransfer(Blocks):
    async def receive_weights(self, request, progress):
        self.cache.clear()
        self.staged = request.receive == "staged"
        await super().receive_weights(request, progress)

    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        if not self.staged:
            self.cache.clear()


@mutant("G4", "completions \\d+ and \\d+ are both", part="seeds")
class TakesASeedWithoutItsSign(ScriptedEngine):
    def _generate(self, prompt, sampling):
        seed = sampling.seed
        return super()._generate(prompt, replace(sampling, seed=seed and abs(seed)))
