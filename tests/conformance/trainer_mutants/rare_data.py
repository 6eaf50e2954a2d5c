"""Broken trainers of T1 and T2 that only some models or some data show."""

from dataclasses import replace

import torch

from contracts.trainer import PackedBatch, TokenScores
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.gradient import scaled
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.shared_prefixes import SharedPrefixes


@mutant("T1", "has dropout in training mode is scored wrongly.*after a step")
class TrainsWithDropoutAfterTheFirstBackward(PlainTrainer):
    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        self._model.train()


@mutant("T1", "of token", also="T2 T6", why="a group that begins alike is in each")
class TakesOneBeginningForOnePrompt(PlainTrainer):
    """Sequences with the same first 16 tokens share keys and values as far as the shortest prompt."""

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        lengths = batch.cu_seqlens.diff().tolist()
        sequences = batch.token_ids.split(lengths)
        prompts = [int(mask.long().argmax()) for mask in batch.loss_mask.split(lengths)]
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, token_ids in enumerate(sequences):
            groups.setdefault(tuple(token_ids[:16].tolist()), []).append(i)
        mixed = [batch.token_ids[:0]] * len(sequences)
        for members in groups.values():
            shared = sequences[members[0]][: min(prompts[i] for i in members)]
            for i in members:
                mixed[i] = torch.cat([shared, sequences[i][len(shared) :]])
        return super()._hidden(replace(batch, token_ids=torch.cat([batch.token_ids[:0], *mixed])))


@mutant("T2", "gradient of .* is off|gradient norm")
class SkipsWhatHasNoAdvantage(PlainTrainer):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        scores = super().forward(batch, grad, entropy)
        if not grad or (batch.advantages * batch.loss_mask).any():
            return scores
        found = {name: tensor for name, tensor in vars(scores).items() if tensor is not None}
        return TokenScores(**{name: scaled(tensor, lambda g: 0 * g) for name, tensor in found.items()})


@mutant("T2", "gradient of .* is off|gradient norm", also="T6", why="a group that begins alike is in each")
class LearnsEqualTokensOnce(PlainTrainer):
    """Tokens with the same beginning have the states of the first of them, without their gradient."""

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        hidden = super()._hidden(batch)
        if not len(hidden):
            return hidden
        shared = SharedPrefixes.of(batch.token_ids, batch.temperature, batch.cu_seqlens)
        own = torch.zeros(len(hidden), 1, dtype=torch.bool).index_fill(0, shared.distinct, True)
        return torch.where(own, hidden, shared.to_pack(shared.to_distinct(hidden)).detach())


@mutant("T1", "of token", also="T2 T6", why="a group that begins alike is in each")
class ScoresEqualTokensOnce(PlainTrainer):
    """Equal sequences have the temperature of the first of them."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        lengths = batch.cu_seqlens.diff().tolist()
        temperatures: dict[tuple[int, ...], torch.Tensor] = {}
        taken = [batch.temperature[:0]]
        for token_ids, temperature in zip(
            batch.token_ids.split(lengths), batch.temperature.split(lengths), strict=True
        ):
            taken.append(temperatures.setdefault(tuple(token_ids.tolist()), temperature))
        return super().forward(replace(batch, temperature=torch.cat(taken)), grad, entropy)
