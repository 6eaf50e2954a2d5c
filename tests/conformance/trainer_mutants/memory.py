"""Broken trainers of T7."""

from collections.abc import Iterator

import torch
from torch.utils.checkpoint import checkpoint

from contracts.trainer import PackedBatch, TokenScores
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.fsdp import FSDPTrainer


@mutant(
    "T7", "gather_weights holds .* of all weights at once on rank 0", part="gathering", ranks=2
)  # one rank copies nothing
class GathersAllAtOnce(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        yield from list(super().gather_weights())


@mutant("T7", "grows by .* the full logits are held", part="scoring")
class HoldsTheLogits(FSDPTrainer):
    def __init__(self):
        super().__init__(logits_chunk=10**9)


@mutant("T7", "grows by .* the full logits are held", part="scoring")
class HoldsTheLogitsOfProbes(FSDPTrainer):
    """Its probes are forwards without a gradient and without entropies."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        self._scorer.logits_chunk = 1024 if grad or entropy else 10**9
        return super().forward(batch, grad, entropy)


@mutant("T7", "grows by .* the full logits are held", part="scoring")
class KeepsTheLogitsOfUnusedEntropies(PlainTrainer):
    """Computes both scores in one checkpoint, which keeps recomputed tensors until both have used them."""

    def _score(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head = self._model.get_output_embeddings()
        chunks = zip(*(x.split(512) for x in (hidden, token_ids, temperature)), strict=True)
        scores = [checkpoint(_both, head, *chunk, use_reentrant=False) for chunk in chunks]
        logprobs, entropies = zip(*scores, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)


def _both(
    head: torch.nn.Module, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    log_p = (head(hidden) / temperature[:, None]).log_softmax(-1)
    return log_p.gather(1, token_ids[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


@mutant("T7", "gather_weights holds .* of all weights at once", part="gathering", ranks=2)
class KeepsWhatItGathered(FSDPTrainer):
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        self._kept = []
        for name, tensor in super().gather_weights():
            self._kept.append(tensor)
            yield name, tensor
