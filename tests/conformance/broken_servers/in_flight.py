"""Broken servers. G2: in flight."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import torch

from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    Health,
    TokenDelta,
)
from inference_adapters.scripted import HIDDEN, ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G2", "ended with 'abort'", part="modes")
class DropsRequestsInFlight(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        for sequence in self._sequences:
            sequence.aborted = True


@mutant("G2", "had tokens of version 1", part="modes")
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


@mutant("G2", "labelled 3|labelled 4|labelled 5: log-probability", part="modes")
class IgnoresRecompute(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, "keep")


@mutant("G2", "sampled by version|labelled 2: log-probability", part="modes")
class FinishesWithOldWeights(ScriptedEngine):
    """Offers only `keep`, and keeps the old weights too, while the labels change correctly."""

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


@mutant("G2", "no answer (while the update was staged|to POST)", part="arrivals", hangs=True)
class StopsForAStagedTransfer(ScriptedEngine):
    async def receive_weights(self, request, progress):
        await self._set_paused(True)
        try:
            await super().receive_weights(request, progress)
        finally:
            await self._set_paused(False)


@mutant("G2", "503", part="arrivals")
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


@mutant("G2", "log-probability", part="modes")
class ZeroesTheCacheOfRequestsInFlight(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        if kv_cache == "keep":
            for sequence in list(self._sequences):
                sequence.state = torch.zeros_like(sequence.state)


@mutant("G2", "log-probability", part="modes")
class LosesTheCacheOfEverySixteenth(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, kv_cache)
        if kv_cache == "keep":
            for sequence in list(self._sequences)[15::16]:
                sequence.state = torch.zeros_like(sequence.state)


@mutant("G2", "log-probability", part="modes")
class RecomputesTheFirstEight(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, "keep")
        if kv_cache == "recompute":
            for sequence in list(self._sequences)[:8]:
                sequence.state = self._states(sequence.token_ids)[-1]


@mutant("G2", "log-probability", part="modes")
class RecomputesShortSequencesOnly(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        super().apply_weights(tensors, tied, version, "keep")
        if kv_cache == "recompute":
            for sequence in list(self._sequences):
                if len(sequence.token_ids) < 256:
                    sequence.state = self._states(sequence.token_ids)[-1]


@mutant("G2", "log-probability", part="prompts")
class HoldsPromptsThatAreBeingRead(ScriptedEngine):
    """Prompts are processed before they get a slot; `recompute` does not reach requests without one."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.read = {}

    async def _generate(self, prompt, sampling):
        state = torch.zeros(HIDDEN)
        for start in range(0, len(prompt), 64):
            for token_id in prompt[start : start + 64]:
                state = self._advance(state, token_id)
            await asyncio.sleep(0.001)
        self.read[tuple(prompt)] = state
        await asyncio.sleep(2 if len(prompt) > 512 else 0)
        async for delta in super()._generate(prompt, sampling):
            yield delta

    def _states(self, token_ids):
        read = self.read.pop(tuple(token_ids), None)
        return super()._states(token_ids) if read is None else read[None]


@mutant("G2", "no token of a request in flight|just after `live`", part="modes")
class StaysHeldForTenSecondsAfterLive(ScriptedEngine):
    """After its first updates, which are more than the kit needs."""

    updates = 0

    async def receive_weights(self, request, progress):
        await super().receive_weights(request, progress)
        self.updates += 1
        if self.updates <= 8:
            await self._set_paused(True)
            self._loop.call_later(10, lambda: asyncio.ensure_future(self._set_paused(False)))


@mutant(
    "G2",
    "no answer (while|to POST)|no token of a request in flight",
    part="arrivals",
    hangs=True,
)
class StopsAfterTheSecondBucketOfAStagedTransfer(ScriptedEngine):
    async def receive_weights(self, request, progress):
        if request.receive == "staged":
            watch = asyncio.create_task(self._stop(progress))
        try:
            await super().receive_weights(request, progress)
        finally:
            if request.receive == "staged":
                watch.cancel()
                await self._set_paused(False)

    async def _stop(self, progress):
        seen = set()
        while len(seen - {0}) < 2:
            seen.add(progress.bytes)
            await asyncio.sleep(0.001)
        await self._set_paused(True)


@mutant("G2", "no token of a request in flight|no answer to POST", part="arrivals", hangs=True)
class HoldsRequestsInFlightForAStagedTransfer(ScriptedEngine):
    """New requests are answered during the transfer."""

    held = frozenset()

    async def receive_weights(self, request, progress):
        self.held = frozenset(self._sequences) if request.receive == "staged" else frozenset()
        try:
            await super().receive_weights(request, progress)
        finally:
            self.held = frozenset()
            async with self._changed:
                self._changed.notify_all()

    async def _wait_while_paused(self, sequence):
        await super()._wait_while_paused(sequence)
        async with self._changed:
            await self._changed.wait_for(lambda: sequence not in self.held or sequence.aborted)


@mutant(
    "G2",
    "no token of a request in flight|no answer to POST|Timed out waiting",
    part="arrivals",
    hangs=True,
)
class HoldsManyRequestsForAStagedTransfer(HoldsRequestsInFlightForAStagedTransfer):
    """With few requests, all have ended before the transfer begins, as on a busy machine."""

    async def receive_weights(self, request, progress):
        few = len(self._sequences) < 12
        while few and self._sequences:
            await asyncio.sleep(0.005)
        await super().receive_weights(request, progress)


@mutant("G2", "ended with 'abort'|'abort' after|504|500", part="arrivals")
class EndsRequestsAfterASecondOfPause(ScriptedEngine):
    async def _wait_while_paused(self, sequence):
        try:
            async with asyncio.timeout(1):
                await super()._wait_while_paused(sequence)
        except TimeoutError:
            sequence.aborted = True


@mutant("G2", "ended with", part="modes")
class CountsMaxTokensAnewAfterRecompute(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        version = None
        ids = []
        async for delta in super()._generate(prompt, sampling):
            version = version or delta.versions[0] if delta.versions else version
            if delta.versions and delta.versions[0] != version and not delta.finish_reason:
                break
            ids += delta.token_ids
            yield delta
        else:
            return
        async for delta in super()._generate([*prompt, *ids], sampling):
            yield delta


@mutant("G2", "/score: 503", part="arrivals")
class RefusesScoresMeanwhile(ScriptedEngine):
    receiving = False

    async def receive_weights(self, request, progress):
        self.receiving = True
        try:
            await super().receive_weights(request, progress)
        finally:
            self.receiving = False

    async def score(self, request):
        if self.receiving:
            raise ContractError(ErrorCode.UNHEALTHY, "receiving weights")
        return await super().score(request)
