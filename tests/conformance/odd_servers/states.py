"""Odd servers: the state they keep over an update, and the state they lose by a failed one."""

import asyncio

from contracts.errors import ContractError, ErrorCode
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.weight_updates import WeightUpdates
from tests.conformance.odd_servers.registry import odd

RESTART_S = 0.5


@odd(on="G1/events G1/lent G5/failed-update G6/retries G7/polls G7/infinities G7/leaving")
class RestartsAfterAFailedUpdate(ScriptedEngine):
    """Restarts its engine once it has reported that a group's update failed, and is then a fresh server.

    So it cannot hold requests in its sleep, and offers none.
    """

    restarts = 0

    def info(self):
        offered = super().info()
        kept = [word for word in offered.capabilities if word != "sleep"]
        return offered.model_copy(update={"capabilities": kept})

    async def start(self, version):
        await super().start(version)
        right_status = WeightUpdates.status
        right_abort = WeightUpdates.abort

        async def status(updates, *arguments):
            return self._told(updates, await right_status(updates, *arguments))

        async def abort(updates, *arguments):
            return self._told(updates, await right_abort(updates, *arguments))

        WeightUpdates.status = status
        WeightUpdates.abort = abort

    def _told(self, updates, outcome):
        if outcome.state == "failed" and updates.loaded and updates.contract().channel is None:
            updates.loaded = False
            self.restarting = asyncio.create_task(self._restart(updates))
        return outcome

    async def _restart(self, updates):
        self.restarts += 1
        await self.abort_requests()
        await asyncio.sleep(RESTART_S)
        for name, weight in self.initial_weights(0).items():
            self._weights[name].copy_(weight)
        channels = updates.membership.channels
        fresh = WeightUpdates(self, updates.ledger.held.timeout_s, updates.limits, channels)
        await self._set_paused(False)
        self._version = 0
        vars(updates).update(vars(fresh))
        updates.loaded = True

    async def _generate(self, prompt, sampling):
        restarts = self.restarts
        async for delta in super()._generate(prompt, sampling):
            if self.restarts != restarts:
                raise ContractError(ErrorCode.ENGINE_FAILED, "the engine restarts")
            yield delta


@odd(on="G1/variants G3/updates")
class KeepsCachesOfOlderWeights(ScriptedEngine):
    """Keeps the states after its prompts over updates, and uses only those of the live weights."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._cache = {}
        self._applied = 0

    def apply_weights(self, *arguments):
        self._applied += 1
        super().apply_weights(*arguments)

    def _states(self, token_ids):
        key = (self._applied, *token_ids)
        if key not in self._cache:
            while len(self._cache) >= 256:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = super()._states(token_ids)
        return self._cache[key]
