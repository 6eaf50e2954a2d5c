"""Broken servers. G3: stale cache."""

from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G3", "greedy token|log-probability", also="G1 G2 G5 G6 G7 G8 G9")  # wherever a prompt comes again
class KeepsThePrefixCache(ScriptedEngine):
    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.cache = {}

    def _states(self, token_ids):
        return self.cache.setdefault(tuple(token_ids), super()._states(token_ids))


@mutant("G3", "greedy token|log-probability", also="G1 G2 G5 G6 G7 G8 G9")
class FillsTheCacheAfterTheUpdate(ScriptedEngine):
    """Emptied by every update, and filled by requests that began before it."""

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
