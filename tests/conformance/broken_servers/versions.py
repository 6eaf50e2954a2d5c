"""Broken servers. G5: honest versions."""

from collections.abc import Callable
from dataclasses import replace

from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


def relabelled(label: Callable[[ScriptedEngine, int], int]) -> type[ScriptedEngine]:
    class Relabels(ScriptedEngine):
        async def _generate(self, prompt, sampling):
            async for delta in super()._generate(prompt, sampling):
                yield replace(delta, versions=[label(self, version) for version in delta.versions])

    return Relabels


@mutant("G5", "labels .*2, 0, 24.* after version 1", also="G1 G2 G6 G7 G8")
class LabelsWithTheNextVersion(relabelled(lambda engine, version: version + 1)):
    pass


@mutant("G5", "labels .*0, 0, 24.* after version 1", also="G1 G2 G6 G7 G8")
class LabelsWithTheOldVersion(relabelled(lambda engine, version: max(0, version - 1))):
    pass


@mutant("G5", "labelled 1: log-probability", also="G2 G8")
class LabelsWithTheVersionAtTheStart(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        first = None
        async for delta in super()._generate(prompt, sampling):
            first = delta.versions[0] if first is None and delta.versions else first
            yield replace(delta, versions=[first for _ in delta.versions])
