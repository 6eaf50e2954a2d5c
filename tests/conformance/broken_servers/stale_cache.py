"""Broken servers. G3: stale cache."""

from dataclasses import replace

import torch

from inference_adapters import generation_routes
from inference_adapters.scripted import BIAS, ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G3", "greedy token|log-probability", part="updates")  # wherever a prompt is repeated
class KeepsThePrefixCache(ScriptedEngine):
    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.cache = {}

    def _states(self, token_ids):
        return self.cache.setdefault(tuple(token_ids), super()._states(token_ids))


@mutant("G3", "greedy token|log-probability", part="updates")
class FillsTheCacheAfterTheUpdate(ScriptedEngine):
    """The cache is emptied by every update, and then filled by requests that began before it."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.cache = {}

    def _states(self, token_ids):
        return self.cache.get(tuple(token_ids), super()._states(token_ids))

    async def _generate(self, prompt, sampling):
        states = super()._states(prompt)
        try:
            async for delta in super()._generate(prompt, sampling):
                yield delta
        finally:
            self.cache[tuple(prompt)] = states

    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        self.cache.clear()


class Caching(ScriptedEngine):
    """A server that caches the states of prompts. `key` says which prompts are equal; None is not cached."""

    emptied_by = ("keep", "recompute")

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.cache = {}

    def key(self, token_ids):
        return tuple(token_ids)

    def _states(self, token_ids):
        key = self.key(token_ids)
        if key is None:
            return super()._states(token_ids)
        if key not in self.cache:
            self.cache[key] = super()._states(token_ids)
        return self.cache[key]

    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        if kv_cache in self.emptied_by:
            self.cache.clear()


WRONG = "greedy token|log-probability"


@mutant("G3", WRONG, part="updates")
class KeepsThePrefixCacheWithKeep(Caching):
    emptied_by = ("recompute",)


@mutant("G3", WRONG, part="updates")
class KeepsThePrefixCacheOfLongPrompts(Caching):
    emptied_by = ()

    def key(self, token_ids):
        return tuple(token_ids) if len(token_ids) > 300 else None


@mutant("G3", WRONG, part="updates")
class KeepsThePrefixCacheOfVeryLongPrompts(Caching):
    emptied_by = ()

    def key(self, token_ids):
        return tuple(token_ids) if len(token_ids) > 1500 else None


@mutant("G3", WRONG, part="takeover")
class SaltsTheCacheWithTheVersion(Caching):
    """After a takeover, another run's version has the same number."""

    emptied_by = ()

    def key(self, token_ids):
        return (self._version, *token_ids)


@mutant("G3", WRONG, part="updates")
class EmptiesTheCacheBeforeTheTransfer(Caching):
    emptied_by = ()

    async def receive_weights(self, request, progress):
        self.cache.clear()
        await super().receive_weights(request, progress)


@mutant("G3", WRONG, part="updates")
class CachesAnswersThatCrossedAnUpdate(ScriptedEngine):
    """When a request ends, it becomes a cached prefix, as older weights have read it.

    All of it is cached, because the scripted state does not retain what an attention's keys and values would.
    """

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.cache = {}

    async def _generate(self, prompt, sampling):
        old = ScriptedEngine()
        old._weights = {name: weight.clone() for name, weight in self._weights.items()}
        ids = list(prompt)
        async for delta in super()._generate(prompt, sampling):
            ids += delta.token_ids
            if delta.finish_reason and not torch.equal(old._weights[BIAS], self._weights[BIAS]):
                self.cache[tuple(ids)] = old._states(ids)
            yield delta

    def _states(self, token_ids):
        return self.cache.get(tuple(token_ids), super()._states(token_ids))


class CachingMarked(Caching):
    """A server that keeps the states of prompts that a request of some kind has marked."""

    emptied_by = ()

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.marked = set()

    def key(self, token_ids):
        return tuple(token_ids) if tuple(token_ids) in self.marked else None


@mutant("G3", WRONG, part="updates")
class KeepsThePrefixCacheOfSeveralChoices(CachingMarked):
    async def start(self, version):
        await super().start(version)
        right = generation_routes.sampling_parameters

        def counted(request, *others):
            self.several = request.n > 1
            return right(request, *others)

        generation_routes.sampling_parameters = counted

    def generate(self, prompt_token_ids, sampling):
        if self.several:
            self.marked.add(tuple(prompt_token_ids))
        return super().generate(prompt_token_ids, sampling)


@mutant("G3", WRONG, part="updates")
class KeepsThePrefixCacheOfSeveralPrompts(CachingMarked):
    async def start(self, version):
        await super().start(version)
        right = generation_routes.text_prompts

        async def counted(given, engine):
            found = await right(given, engine)
            if len(found) > 1:
                self.marked.update(map(tuple, found))
            return found

        generation_routes.text_prompts = counted


class Remembering(ScriptedEngine):
    """A server that repeats its response to an identical request."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.answers = {}

    def remembers(self, sampling):
        raise NotImplementedError

    async def _generate(self, prompt, sampling):
        key = (tuple(prompt), repr(sampling))
        if key in self.answers:
            for delta in self.answers[key]:
                yield replace(delta, versions=[self._version for _ in delta.versions])
            return
        deltas = []
        async for delta in super()._generate(prompt, sampling):
            deltas.append(delta)
            yield delta
        if self.remembers(sampling) and deltas[-1].finish_reason != "abort":
            self.answers[key] = deltas


@mutant("G3", WRONG, part="updates")
class RemembersGreedyAnswers(Remembering):
    def remembers(self, sampling):
        return sampling.temperature == 0


@mutant("G3", WRONG, part="updates")
class RemembersSeededAnswers(Remembering):
    def remembers(self, sampling):
        return sampling.seed is not None and sampling.temperature > 0


@mutant("G3", "/score", part="updates")
class ScoresFromACache(ScriptedEngine):
    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.scores = {}

    async def score(self, request):
        key = request.model_dump_json()
        if key not in self.scores:
            self.scores[key] = await super().score(request)
        return self.scores[key].model_copy(update={"version": self._version})
