"""Broken trainers of T1."""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from contracts.trainer import PackedBatch, TokenScores, WorkerSpec
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters import attention, token_scores
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.layers import kinds
from trainer_adapters.logit_form import LogitForm


@mutant(
    "T1",
    "neighbours are seen: token .* changes by",
    part="decoders",
)
class LetsNeighboursSeeEachOther(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        one = torch.tensor([0, batch.num_tokens], dtype=torch.int32)
        return super().forward(replace(batch, cu_seqlens=one), grad, entropy)


@mutant("T1", "forward changes loss_mask of the batch", part="decoders")
class ShiftsTheMaskInPlace(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        batch.loss_mask.copy_(batch.loss_mask.roll(1))
        return scores


@mutant(
    "T1",
    "temperature is not applied",
    part="decoders",
)
class ForgetsTemperature(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        return super().forward(replace(batch, temperature=torch.ones(batch.num_tokens)), grad, entropy)


@mutant(
    "T1",
    "first token of a sequence has nothing before it",
    part="decoders",
)
class ScoresTheFirstToken(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        return replace(scores, logprobs=scores.logprobs - (batch.position_ids == 0) * math.log(98))


@mutant("T1", "divides its logits after the head is scored wrongly, without an error", part="special-models")
class ScoresWhateverTheModel(FSDPTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        token_scores.logit_form = lambda config: LogitForm()  # in the process of this rank
        super().init_worker(spec)

    def _check_scores(self) -> None:
        pass


@mutant("T1", "with a recurrent state is scored wrongly, without an error", part="special-models")
class RunsARecurrenceAcrossThePack(FSDPTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        kinds.carry = lambda mixer: None
        super().init_worker(spec)

    def _check_scores(self) -> None:
        pass


@mutant("T1", "has sinks in its attention is scored wrongly, without an error", part="special-models")
class LeavesOutSinks(FSDPTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        attention._padded_otherwise = lambda *arguments: attention._padded(*arguments[:6])
        super().init_worker(spec)

    def _check_scores(self) -> None:
        pass


@mutant(
    "T1",
    "entropy has no gradient with grad=True",
    part="decoders",
)
class DetachesTheEntropy(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        return replace(scores, entropy=scores.entropy.detach()) if entropy else scores


@mutant("T1", "neighbours are seen|logprob of token", part="decoders")
class LeaksBeyond128Tokens(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        starts = batch.cu_seqlens
        kept = starts[(starts <= 128) | (starts == batch.num_tokens)]
        return super().forward(replace(batch, cu_seqlens=kept), grad, entropy)


@mutant("T1", "logprob of token", part="decoders")
class CutsSequencesOver64Tokens(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        cuts = (batch.position_ids % 64 == 0).nonzero().squeeze(1).to(torch.int32)
        ends = torch.cat([cuts, batch.cu_seqlens[-1:]]) if batch.num_tokens else batch.cu_seqlens
        return super().forward(replace(batch, cu_seqlens=ends), grad, entropy)


@mutant("T1", "of token", part="decoders")
class TakesTheFirstTemperatureAfterTheFirstChunk(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        temperature = batch.temperature.clone()
        temperature[1024:] = temperature[:1]
        return super().forward(replace(batch, temperature=temperature), grad, entropy)


@mutant(
    "T1",
    "of token|neighbours are seen",
    part="decoders",
)
class TakesTheTemperatureOfTheFirstSequence(FSDPTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        first = batch.temperature[:1].expand_as(batch.temperature)
        return super().forward(replace(batch, temperature=first), grad, entropy)


@mutant("T1", "after a step, logprob .grad=False. of token", part="decoders")
class ScoresWithTheWeightsThatWereGathered(PlainTrainer):
    """Without a gradient it scores with a copy of the model, which only `gather_weights` refreshes."""

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        self._copy = copy.deepcopy(self._model)
        return super().gather_weights()

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        model = self._model
        try:
            self._model = model if grad else getattr(self, "_copy", model)
            return super().forward(batch, grad, entropy)
        finally:
            self._model = model


@mutant("T1", "has dropout in training mode is scored wrongly", part="special-models")
class TrainsWithDropout(PlainTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        self._model.train()


@mutant("T1", "a head with a bias is scored wrongly", part="special-models")
class ForgetsTheBiasOfTheHead(PlainTrainer):
    def init_worker(self, spec: WorkerSpec) -> None:
        super().init_worker(spec)
        head = self._model.get_output_embeddings()
        head.forward = lambda hidden: torch.nn.functional.linear(hidden, head.weight)


@mutant(
    "T1",
    "rank . is|not refused on rank 1 alone|not every rank ended|rank 1 raised",
    part="special-models",
    ranks=2,
)
class RefusesOnRank0Alone(PlainTrainer):
    def _check_head(self) -> None:
        if self._spec.rank == 0:
            super()._check_head()


@mutant("T1", "entropy .grad=False. of token", part="decoders")
class ForgetsTheOrderOfEntropies(FSDPTrainer):
    """Sorts sequences by length, and restores the order of log-probabilities only."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        if scores.entropy is None or grad:
            return scores
        parts = scores.entropy.split(batch.cu_seqlens.diff().tolist())
        return replace(scores, entropy=torch.cat([*sorted(parts, key=len), scores.entropy[:0]]))


@mutant("T1", "logprob", part="decoders")
class ClampsLowTemperatures(PlainTrainer):
    def _score(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super()._score(hidden, token_ids, temperature.clamp(min=0.3))


@mutant("T1", "logprob of token .* is -?0.0", part="decoders")
class LosesAChunkOfOneToken(PlainTrainer):
    def _score(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores, entropies = super()._score(hidden, token_ids, temperature)
        kept = torch.ones(len(scores))
        if len(scores) > 1 and len(scores) % 64 == 1:
            kept[-1] = 0
        return scores * kept, entropies * kept
