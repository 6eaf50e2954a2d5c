"""Broken servers that were written from the contract's text alone: behaviour at an update."""

import asyncio
import time
from collections import OrderedDict

import torch

from contracts.inference import TokenDelta
from inference_adapters import scripted
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant

LONELY_S = 1.0  # after which a prompt is processed if no other has come
WRONG = "greedy token|log-probability"


class Stepwise(ScriptedEngine):
    """The scripted engine's loop, with a hook for the swap of weights."""

    async def _generate(self, prompt, sampling):
        generator = self._generator
        if sampling.seed is not None:
            generator = torch.Generator().manual_seed(sampling.seed)
        one = scripted.RunningRequest(list(prompt), torch.zeros(scripted.HIDDEN))
        one.begun = False
        one.prompt = prompt
        one.sampling = sampling
        one.generator = generator
        one.launched = None
        one.ends = False
        self._sequences.add(one)
        sampled = 0
        try:
            while True:
                await self._wait_while_paused(one)
                if one.aborted or one.ends:
                    yield TokenDelta([], [], [], "abort" if one.aborted else "length")
                    return
                if not one.begun:
                    one.state = self._states(prompt)[-1]
                    one.begun = True
                version = self._version
                logits = self._logits(one.state)
                tops = [self.likeliest(logits, sampling)] if sampling.top_logprobs else ()
                if one.launched:
                    token_id, logprob, version = one.launched
                    one.launched = None
                else:
                    token_id, logprob = self.step(one)
                sampled += 1
                stopped = token_id == scripted.EOS or token_id in sampling.stop_token_ids
                reason = "stop" if stopped else "length" if sampled == sampling.max_tokens else None
                yield TokenDelta([token_id], [logprob], [version], reason, tops)
                if reason:
                    return
                await asyncio.sleep(self.token_delay_s)
        finally:
            self._sequences.discard(one)

    def draw(self, one):
        return self.sample(self._logits(one.state), one.sampling, one.generator)

    def step(self, one):
        token_id, logprob = self.draw(one)
        one.token_ids.append(token_id)
        one.state = self._advance(one.state, token_id)
        return token_id, logprob

    def begun(self):
        return [one for one in list(self._sequences) if one.begun]


@mutant("G1", WRONG, part="context")
class ReplaysGraphsOfTheOldWeights(ScriptedEngine):
    """Weights are replaced by reference, but decoding at captured batch sizes reads the old memory."""

    captured_sizes = (1, 2, 4, 8)
    reading = False
    fresh = False

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.captured = {name: weight.clone() for name, weight in self._weights.items()}

    def _states(self, token_ids):
        self.reading = True
        try:
            return super()._states(token_ids)
        finally:
            self.reading = False
            self.fresh = True

    def _by_graph(self, function, *arguments):
        rebound = self._weights
        self._weights = self.captured
        try:
            return function(*arguments)
        finally:
            self._weights = rebound

    def _advance(self, state, token_id):
        if self.reading or len(self._sequences) not in self.captured_sizes:
            return super()._advance(state, token_id)
        return self._by_graph(super()._advance, state, token_id)

    def _logits(self, states):
        if states.dim() > 1 or self.fresh or len(self._sequences) not in self.captured_sizes:
            self.fresh = False
            return super()._logits(states)
        return self._by_graph(super()._logits, states)


@mutant("G1", WRONG, part="formats")
class AssignsInTheModelsOrder(ScriptedEngine):
    """Tensors of one shape in one bucket are assigned in the model's order, not in the request's."""

    def buffered(self, bucket):
        assigned = {}
        for shape in {tensor.shape for tensor in bucket.values()}:
            sent = [tensor for tensor in bucket.values() if tensor.shape == shape]
            own = [name for name in self._weights if name in bucket and bucket[name].shape == shape]
            assigned |= dict(zip(own, sent, strict=True))
        return assigned


@mutant("G2", WRONG, part="modes")
class RecomputesNoSharedBlocks(Stepwise):
    """Choices of one request share their prompt, and shared blocks are not recomputed.

    The complete state is kept, because the scripted state does not retain what keys and values would.
    """

    def apply_weights(self, tensors, tied, version, kv_cache):
        old = {one: one.state for one in self.begun()}
        super().apply_weights(tensors, tied, version, kv_cache)
        for one in self.begun():
            if sum(other.prompt is one.prompt for other in self._sequences) > 1:
                one.state = old[one]


@mutant("G2", WRONG, part="modes")
class ThrowsATokenAwayAtTheSwap(Stepwise):
    """A step was running at the pause: its token is in the sequence, but is not delivered."""

    def apply_weights(self, tensors, tied, version, kv_cache):
        for one in self.begun():
            self.step(one)
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G2", WRONG, part="modes")
class SamplesATokenTwiceAtTheSwap(Stepwise):
    """A step was running at the pause: its token is delivered, and its position sampled again."""

    def apply_weights(self, tensors, tied, version, kv_cache):
        for one in self.begun():
            one.launched = (*self.draw(one), self._version)
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G2", "ended with", part="modes")
class EndsWhatOnePassCannotRecompute(Stepwise):
    one_pass = 1024  # tokens

    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        if kv_cache == "recompute":
            for one in self.begun():
                one.ends = len(one.token_ids) > self.one_pass


class Radix(ScriptedEngine):
    """Prompts share the states of their common prefix; the last token is always computed."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.cache: OrderedDict[tuple, torch.Tensor] = OrderedDict()

    def found(self):
        return self.cache

    def _states(self, token_ids):
        ids = tuple(token_ids)
        best, n = None, 0
        for known, states in self.found().items():
            alike = next(
                (i for i, (a, b) in enumerate(zip(known, ids, strict=False)) if a != b),
                min(len(known), len(ids)),
            )
            alike = min(alike, len(ids) - 1) // 16 * 16
            if alike > n:
                best, n = states, alike
        states = [] if best is None else list(best[:n])
        state = states[-1] if states else torch.zeros(scripted.HIDDEN)
        for token_id in ids[n:]:
            state = self._advance(state, token_id)
            states.append(state)
        computed = torch.stack(states)
        self.insert(ids, computed)
        return computed

    def insert(self, ids, states):
        self.cache[ids] = states
        self.cache.move_to_end(ids)
        while len(self.cache) > 64:
            self.cache.popitem(last=False)


@mutant("G3", WRONG, part="updates")
class IgnoresThatItsCacheIsInUse(Radix):
    """The reset is refused while a request runs, and the refusal is ignored."""

    def apply_weights(self, tensors, tied, version, kv_cache):
        if kv_cache == "recompute" or not self._sequences:
            self.cache.clear()
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G8", "did not end|failed|no answer|receiving", part="arrivals")
class StopsOnlyWhenNoPromptWaits(ScriptedEngine):
    """An update waits until no prompt is left to process; one is processed when the next has come."""

    unread = 0

    async def start(self, version):
        await super().start(version)
        self._newest = asyncio.Event()

    async def _generate(self, prompt, sampling):
        self.unread += 1
        try:
            self._newest.set()
            self._newest = come = asyncio.Event()
            asyncio.get_running_loop().call_later(LONELY_S, come.set)
            await come.wait()
        finally:
            self.unread -= 1
        async for delta in super()._generate(prompt, sampling):
            yield delta

    async def receive_weights(self, request, progress):
        self.patience = request.timeout_s
        await super().receive_weights(request, progress)

    def pause_generation(self):
        until = time.monotonic() + self.patience
        while self.unread:
            if time.monotonic() > until:
                raise TimeoutError("generation could not be paused in time")
            time.sleep(0.0005)
        return super().pause_generation()
