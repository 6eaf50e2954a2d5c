"""Odd servers: how they generate, join and fail."""

import asyncio
import time

from contracts.inference import ProcessFigures, TokenDelta
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.odd_servers.registry import odd


@odd(token_delay_s=0.05, on="G4/alone G11/connections")
class Slow(ScriptedEngine):
    """Needs 50 ms per token."""


@odd(on="G2/several G5/updates G9/streams G18/states")
class InBursts(ScriptedEngine):
    """Delivers its tokens sixteen at a time."""

    burst = 16

    async def _generate(self, prompt, sampling):
        waiting = []
        async for delta in super()._generate(prompt, sampling):
            waiting.append(delta)
            if len(waiting) == self.burst or delta.finish_reason:
                yield TokenDelta(
                    [token for each in waiting for token in each.token_ids],
                    [logprob for each in waiting for logprob in each.logprobs],
                    [version for each in waiting for version in each.versions],
                    delta.finish_reason,
                    [tops for each in waiting for tops in each.top_logprobs],
                    delta.commitments,
                )
                waiting = []


class Slots(ScriptedEngine):
    """Generates a few completions at a time; the others wait in the order in which they arrived."""

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


@odd(token_delay_s=0.0005, on="G2/modes")
class TwoSlots(Slots):
    slots = 2


@odd(token_delay_s=0.0005, on="G3/updates G11/connections G19/held")
class OneSlot(Slots):
    slots = 1


@odd(on="G6/joins G6/group")
class JoinsSlowly(ScriptedEngine):
    async def join_group(self, request):
        await asyncio.sleep(0.3)
        return await super().join_group(request)


@odd(token_delay_s=0.02, on="G3/updates G6/edges")
class HasASmallContext(ScriptedEngine):
    def max_context(self):
        return 256


@odd(on="G2/arrivals G2/prompts G3/updates G19/update")
class StopsAtTheAcceptance(ScriptedEngine):
    """Pauses as soon as a `paused` update is accepted, and not when its first bucket arrives."""

    async def receive_weights(self, request, progress):
        if request.receive == "staged":
            await super().receive_weights(request, progress)
            return
        paused = self._paused  # in its sleep
        await self._set_paused(True)
        try:
            await super().receive_weights(request, progress)
            paused = False
        finally:
            await self._set_paused(paused)


@odd(on="G2/arrivals G3/updates G5/queued")
class GeneratesWhileItReceives(ScriptedEngine):
    """Stops for a `paused` update as late as for a staged one: when the weights are applied."""

    async def receive_weights(self, request, progress):
        await super().receive_weights(request.model_copy(update={"receive": "staged"}), progress)
