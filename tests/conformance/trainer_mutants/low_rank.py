"""Broken trainers of low-rank factors (LoRA)."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from contracts.trainer import LowRank
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.fsdp import FSDPTrainer


class Adapted(FSDPTrainer):
    def __init__(self) -> None:
        super().__init__(lora={"rank": 4, "alpha": 8})


@mutant("T4", "off by .* from W [+] 2 B A", part="weights")
class MergesWithoutTheScale(Adapted):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        lora, self._lora = self._lora, replace(self._lora, alpha=self._lora.rank)
        try:
            yield from super().gather_weights()
        finally:
            self._lora = lora


@mutant("T4", "layers.1.mlp.down_proj.weight .*: B A is not in it", part="weights")
class MergesAllLayersButTheLast(Adapted):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        *_, last = self._adapted
        module = self._adapted.pop(last)
        try:
            yield from super().gather_weights()
        finally:
            self._adapted[last] = module


@mutant("T4", "has no factors, and differs from the checkpoint", part="weights")
class TrainsTheNormsToo(Adapted):
    def _adapt(self) -> None:
        super()._adapt()
        for name, parameter in self._model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.requires_grad_(True)


@mutant("T2", "gradient of factor A of .* is off by", part="cuts")
class TrainsOneFactorAlone(Adapted):
    def _adapt(self) -> None:
        super()._adapt()
        for name, parameter in self._model.named_parameters():
            if ".lora_A." in name:
                parameter.requires_grad_(False)


@mutant(
    "T1",
    "after a step, .* should be",
    part="decoders",
)
class PublishesAnotherScaleThanItComputesWith(Adapted):
    def _factors(self, name: str) -> LowRank:
        return replace(super()._factors(name), scale=3.0)
