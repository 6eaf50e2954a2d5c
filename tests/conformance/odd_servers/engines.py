"""Odd servers: how they generate, join and fail."""

import asyncio
import time

from contracts.errors import ContractError, ErrorCode
from contracts.inference import Health, ProcessFigures, TokenDelta
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.weight_updates import WeightUpdates
from tests.conformance.odd_servers.registry import odd


@odd(token_delay_s=0.05)
class Slow(ScriptedEngine):
    """It needs 50 ms for each token."""


@odd()
class InBursts(ScriptedEngine):
    """It hands over its tokens sixteen at a time."""

    async def _generate(self, prompt, sampling):
        waiting = []
        async for delta in super()._generate(prompt, sampling):
            waiting.append(delta)
            if len(waiting) == 16 or delta.finish_reason:
                yield TokenDelta(
                    [token for each in waiting for token in each.token_ids],
                    [logprob for each in waiting for logprob in each.logprobs],
                    [version for each in waiting for version in each.versions],
                    delta.finish_reason,
                )
                waiting = []


class Slots(ScriptedEngine):
    """It generates a few completions at a time; the others wait in the order in which they came."""

    slots = 2

    async def start(self, version):
        await super().start(version)
        self._free = asyncio.Semaphore(self.slots)
        self._waiting = 0

    def process(self):
        figures = super().process()
        return ProcessFigures(
            resident_bytes=figures.resident_bytes, running=figures.running, waiting=self._waiting
        )

    async def abort_requests(self):
        self._aborted_at = time.monotonic()
        await super().abort_requests()

    async def _generate(self, prompt, sampling):
        arrived = time.monotonic()
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            if arrived < getattr(self, "_aborted_at", 0):
                yield TokenDelta([], [], [], "abort")
                return
            async for delta in super()._generate(prompt, sampling):
                yield delta
        finally:
            self._free.release()


@odd()
class TwoSlots(Slots):
    slots = 2


@odd()
class OneSlot(Slots):
    slots = 1


@odd()
class JoinsSlowly(ScriptedEngine):
    async def join_group(self, request):
        await asyncio.sleep(0.3)
        return await super().join_group(request)


@odd(token_delay_s=0.02)
class HasASmallContext(ScriptedEngine):
    def max_context(self):
        return 256


@odd()
class StopsAtTheAcceptance(ScriptedEngine):
    """It pauses as soon as a `paused` update is accepted, and not when its first bucket comes."""

    async def receive_weights(self, request, progress):
        if request.receive == "staged":
            await super().receive_weights(request, progress)
            return
        await self._set_paused(True)
        try:
            await super().receive_weights(request, progress)
        finally:
            await self._set_paused(False)


@odd()
class RestartsAfterAFailedUpdate(ScriptedEngine):
    """It loses its weights with its engine, which takes two seconds to come back."""

    back_at = 0.0

    async def start(self, version):
        await super().start(version)
        right_health = WeightUpdates.health
        right_join = WeightUpdates.join

        def health(updates):
            if time.monotonic() < self.back_at:
                return Health(status="loading", reason="the engine restarts")
            return right_health(updates)

        async def join(updates, request):
            if time.monotonic() < self.back_at:
                raise ContractError(ErrorCode.UNHEALTHY, "loading: the engine restarts")
            return await right_join(updates, request)

        WeightUpdates.health = health
        WeightUpdates.join = join

    async def receive_weights(self, request, progress):
        try:
            await super().receive_weights(request, progress)
        except Exception:
            async with self._generation_held(progress):
                progress.touched = True
                self.back_at = time.monotonic() + 2
                raise
