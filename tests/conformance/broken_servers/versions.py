"""Broken servers. G5: honest versions."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from inference_adapters import completions
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.weight_updates import WeightUpdates
from tests.conformance.broken_servers.mutants import mutant


def relabelled(label: Callable[[ScriptedEngine, int], int]) -> type[ScriptedEngine]:
    class Relabels(ScriptedEngine):
        async def _generate(self, prompt, sampling):
            async for delta in super()._generate(prompt, sampling):
                yield replace(delta, versions=[label(self, version) for version in delta.versions])

    return Relabels


@mutant("G5", "labels .*2, 0, 24.* after version 1", part="updates")
class LabelsWithTheNextVersion(relabelled(lambda engine, version: version + 1)):
    pass


@mutant("G5", "labels .*0, 0, 24.* after version 1", part="updates")
class LabelsWithTheOldVersion(relabelled(lambda engine, version: max(0, version - 1))):
    pass


@mutant("G5", "labelled 1: log-probability", part="updates")
class LabelsWithTheVersionAtTheStart(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        first = None
        async for delta in super()._generate(prompt, sampling):
            first = delta.versions[0] if first is None and delta.versions else first
            yield replace(delta, versions=[first for _ in delta.versions])


@mutant("G5", "labels .*, 0, 24.* after version", part="takeovers")
class LabelsNeverFallInALifetime(ScriptedEngine):
    highest = 0

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.highest = max(self.highest, version)
        super().apply_weights(tensors, tied, self.highest, kv_cache)


@mutant("G5", "labels .*, 0, 24.* after version|labelled", part="updates")
class RaisesTheLabelWhenAnUpdateIsRequested(ScriptedEngine):
    async def receive_weights(self, request, progress):
        self._version = request.version
        await super().receive_weights(request, progress)


@mutant("G5", "labelled .*log-probability|labels", part="queued")
class LabelsWithTheVersionAtArrival(ScriptedEngine):
    """Affects only the first token, of a request that waited for an update."""

    async def _generate(self, prompt, sampling):
        at_arrival = self._version
        first = True
        async for delta in super()._generate(prompt, sampling):
            yield replace(delta, versions=[at_arrival]) if first and delta.versions else delta
            first = False


@mutant("G5", "labelled .*log-probability", part="updates")
class LabelsOneTokenTooLate(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        before = None
        async for delta in super()._generate(prompt, sampling):
            version = delta.versions[0] if delta.versions else None
            yield replace(delta, versions=[before]) if version and before else delta
            before = version or before


@mutant("G5", "labelled .*log-probability", part="updates")
class LabelsOneTokenTooEarly(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        held = None
        async for delta in super()._generate(prompt, sampling):
            if held:
                yield replace(held, versions=delta.versions or held.versions)
            held = delta
        if held:
            yield held


@mutant("G5", "weight_versions|labelled", part="updates")
class LabelsEachChoiceLikeTheFirst(ScriptedEngine):
    """Every second completion is slower, so that two choices do not cross an update at the same token."""

    begun = 0

    async def start(self, version):
        await super().start(version)
        right = completions.Completion.whole

        def alike(completion):
            for choice in completion.choices[1:]:
                first = completion.choices[0].versions
                n = len(choice.versions)
                choice.versions = (first + first[-1:] * n)[:n]
            return right(completion)

        completions.Completion.whole = alike

    async def _generate(self, prompt, sampling):
        self.begun += 1
        more_s = self.begun % 2 * self.token_delay_s
        async for delta in super()._generate(prompt, sampling):
            yield delta
            await asyncio.sleep(more_s)


@mutant("G5", "weight_versions", part="updates")
def spans_of_a_stream_are_of_its_last_chunk(options):
    right = completions.Completion._chunk

    def relative(self, index, delta):
        chunk = right(self, index, delta)
        if delta.finish_reason:
            chunk["choices"][0]["weight_versions"] = completions.spans(delta.versions)
        return chunk

    completions.Completion._chunk = relative


@mutant("G5", "contract says .*live", part="failed-update")
def says_live_while_receiving(options):
    right = WeightUpdates.contract

    def contract(self):
        info = right(self)
        state = "live" if info.weights.state == "receiving" else info.weights.state
        return info.model_copy(update={"weights": info.weights.model_copy(update={"state": state})})

    WeightUpdates.contract = contract


@mutant("G5", "labelled .*log-probability", part="updates")
class KeepsTheLabelUnderLoad(ScriptedEngine):
    """With more than 16 requests in flight, the label is updated late."""

    async def _generate(self, prompt, sampling):
        first = None
        crowded = len(self._sequences) > 16
        async for delta in super()._generate(prompt, sampling):
            first = delta.versions[0] if first is None and delta.versions else first
            yield replace(delta, versions=[first for _ in delta.versions]) if crowded else delta


@mutant("G5", "contract says", part="failed-update")
def keeps_the_version_of_a_failed_update(options):
    right = UpdateLedger._record_failed

    def failed(self, update, why):
        right(self, update, why)
        self.version = update.outcome.version

    UpdateLedger._record_failed = failed
