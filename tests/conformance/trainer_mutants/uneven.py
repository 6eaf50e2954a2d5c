"""Broken trainers of T6."""

import torch
import torch.distributed as dist

from contracts.trainer import PackedBatch, TokenScores
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.fsdp import FSDPTrainer


@mutant(
    "T6",
    r"rank 0 raised in forward\(\): ValueError: nothing to score",
    part="idle-ranks",
)
class RefusesEmptyBatches(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if not batch.num_tokens:
            raise ValueError("nothing to score")
        return super().forward(batch, grad, entropy)


@mutant(
    "T6",
    "not every rank ended",
    part="idle-ranks",
    ranks=2,
    hangs=True,
)
class MeetsOnlyWhereThereIsWork(FSDPTrainer):
    """Its ranks wait for each other in every forward of a batch with sequences."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if not batch.num_tokens:
            nothing = torch.zeros(0, requires_grad=grad)
            return TokenScores(nothing, nothing if entropy else None)
        return super().forward(batch, grad, entropy)


@mutant(
    "T6",
    "not every rank ended|rank . raised",
    part="idle-ranks",
    ranks=2,
    hangs=True,
)
class MeetsInEveryChunk(FSDPTrainer):
    """Its ranks wait for each other once per chunk of the head."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        for _ in range(1 + batch.num_tokens // 1024):
            dist.barrier()
        return super().forward(batch, grad, entropy)
