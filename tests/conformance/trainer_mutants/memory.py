"""Broken trainers of T7."""

from collections.abc import Iterator

import torch

from contracts.trainer import PackedBatch, TokenScores
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.fsdp import FSDPTrainer


@mutant("T7", "gather_weights holds .* of all weights at once on rank 0")
class GathersAllAtOnce(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        yield from list(super().gather_weights())


@mutant("T7", "grows by .* the full logits are held")
class HoldsTheLogits(FSDPTrainer):
    def __init__(self):
        super().__init__(logits_chunk=10**9)


@mutant("T7", "grows by .* the full logits are held")
class HoldsTheLogitsOfProbes(FSDPTrainer):
    """Its probes are forwards without a gradient and without entropies."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        self._scorer.logits_chunk = 1024 if grad or entropy else 10**9
        return super().forward(batch, grad, entropy)


@mutant("T7", "gather_weights holds .* of all weights at once")
class KeepsWhatItGathered(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        self._kept = []
        for name, tensor in super().gather_weights():
            self._kept.append(tensor)
            yield name, tensor
