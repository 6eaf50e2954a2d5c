"""Broken trainers of T1 and T2 that handle common prefixes wrongly."""

from collections import Counter
from dataclasses import replace

import torch

from contracts.trainer import PackedBatch, StepReport, TokenScores
from examples.plain_trainer import PlainTrainer
from tests.conformance.trainer_mutants.gradient import scaled
from tests.conformance.trainer_mutants.mutants import mutant
from trainer_adapters.shared_prefixes import SharedPrefixes

WRONG_SCORES = {
    "breaks": "T1",
    "says": "of token",
    "part": "decoders",
}
WRONG_GRADIENT = {"breaks": "T2", "says": "gradient of .* is off|gradient norm", "part": "cuts"}


def split(batch: PackedBatch, values: torch.Tensor) -> list[torch.Tensor]:
    """Returns a pack's values by sequence."""
    return list(values.split(batch.cu_seqlens.diff().tolist()))


def prompts_of(batch: PackedBatch) -> list[int]:
    """Returns the length of each sequence's prompt."""
    return [int(mask.long().argmax()) if len(mask) else 0 for mask in split(batch, batch.loss_mask)]


def shared_of(batch: PackedBatch) -> SharedPrefixes:
    return SharedPrefixes.of(batch.token_ids, batch.temperature, batch.cu_seqlens)


@mutant(**WRONG_SCORES)
class TakesOneBeginningForOnePrompt(PlainTrainer):
    """Sequences with the same first 16 tokens share keys and values as far as the shortest prompt."""

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        sequences = split(batch, batch.token_ids)
        prompts = prompts_of(batch)
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, token_ids in enumerate(sequences):
            groups.setdefault(tuple(token_ids[:16].tolist()), []).append(i)
        mixed = [batch.token_ids[:0]] * len(sequences)
        for members in groups.values():
            shared = sequences[members[0]][: min(prompts[i] for i in members)]
            for i in members:
                mixed[i] = torch.cat([shared, sequences[i][len(shared) :]])
        return super()._hidden(replace(batch, token_ids=torch.cat([batch.token_ids[:0], *mixed])))


@mutant(**WRONG_SCORES)
class TakesEqualBlocksForOnePrompt(PlainTrainer):
    """Prompts of one length with the same first 32 tokens are the same."""

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        first: dict[tuple[int, ...], torch.Tensor] = {}
        mixed = [batch.token_ids[:0]]
        for token_ids, prompt in zip(split(batch, batch.token_ids), prompts_of(batch), strict=True):
            shared = token_ids
            if prompt >= 32:
                shared = first.setdefault((prompt, *token_ids[:32].tolist()), token_ids)
            mixed.append(torch.cat([shared[:prompt], token_ids[prompt:]]))
        return super()._hidden(replace(batch, token_ids=torch.cat(mixed)))


@mutant(**WRONG_SCORES)
class CachesBlocksWithoutTheirParents(PlainTrainer):
    """A block of 16 tokens has the same states at the same place, whatever comes before it."""

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        hidden = super()._hidden(batch)
        cache: dict[tuple[int, ...], torch.Tensor] = {}
        blocks = [hidden[:0]]
        for states, token_ids in zip(split(batch, hidden), split(batch, batch.token_ids), strict=True):
            for number, (own, ids) in enumerate(zip(states.split(16), token_ids.split(16), strict=True)):
                blocks.append(cache.setdefault((number, *ids.tolist()), own) if len(ids) == 16 else own)
        return torch.cat(blocks)


@mutant(**WRONG_GRADIENT)
class LearnsEqualTokensOnce(PlainTrainer):
    """Tokens with the same prefix have the states of the first of them, without their gradient."""

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        hidden = super()._hidden(batch)
        if not len(hidden):
            return hidden
        shared = shared_of(batch)
        own = torch.zeros(len(hidden), 1, dtype=torch.bool).index_fill(0, shared.distinct, True)
        return torch.where(own, hidden, shared.to_pack(shared.to_distinct(hidden)).detach())


@mutant(**WRONG_SCORES)
class ScoresEqualTokensOnce(PlainTrainer):
    """Equal sequences have the temperature of the first of them."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        temperatures: dict[tuple[int, ...], torch.Tensor] = {}
        taken = [batch.temperature[:0]]
        rows = zip(split(batch, batch.token_ids), split(batch, batch.temperature), strict=True)
        for token_ids, temperature in rows:
            taken.append(temperatures.setdefault(tuple(token_ids.tolist()), temperature))
        return super().forward(replace(batch, temperature=torch.cat(taken)), grad, entropy)


@mutant("T1", "of token", part="decoders")
class SharesAcrossCloseTemperatures(PlainTrainer):
    """Equal sequences whose temperatures round to the same tenth have one temperature."""

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        temperatures: dict[tuple[float, ...], torch.Tensor] = {}
        taken = [batch.temperature[:0]]
        rows = zip(split(batch, batch.token_ids), split(batch, batch.temperature), strict=True)
        for token_ids, temperature in rows:
            rounded = [round(float(each), 1) for each in temperature[:1]]
            taken.append(temperatures.setdefault((*rounded, *token_ids.tolist()), temperature))
        return super().forward(replace(batch, temperature=torch.cat(taken)), grad, entropy)


class Weighted(PlainTrainer):
    """Scores are right, but the gradient by each token's state is multiplied by a factor."""

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        hidden = super()._hidden(batch)
        factors = self.factors(batch)[:, None]
        return scaled(hidden, lambda gradient: gradient * factors) if len(hidden) else hidden

    def factors(self, batch: PackedBatch) -> torch.Tensor:
        raise NotImplementedError


@mutant(**WRONG_GRADIENT)
class LearnsFromLeavesAlone(Weighted):
    """A sequence that is a prefix of another one has no gradient."""

    def factors(self, batch: PackedBatch) -> torch.Tensor:
        rows = [tuple(token_ids.tolist()) for token_ids in split(batch, batch.token_ids)]
        leaves = [
            not any(len(other) > len(row) and other[: len(row)] == row for other in rows) for row in rows
        ]
        return torch.tensor(leaves).float().repeat_interleave(batch.cu_seqlens.diff())


@mutant(**WRONG_GRADIENT)
class LosesTheGradientOfLongPrompts(Weighted):
    """Shared tokens have no gradient from the 48th on."""

    def factors(self, batch: PackedBatch) -> torch.Tensor:
        slots = shared_of(batch).slots
        shared = slots.bincount()[slots] > 1
        return 1 - (shared & (batch.position_ids >= 48)).float()


@mutant(**WRONG_GRADIENT)
class LearnsFromEightMembers(Weighted):
    def factors(self, batch: PackedBatch) -> torch.Tensor:
        seen: Counter[int] = Counter()
        factors = []
        for slot in shared_of(batch).slots.tolist():
            seen[slot] += 1
            factors.append(float(seen[slot] <= 8))
        return torch.tensor(factors)


class KeepsPrompts(PlainTrainer):
    """A prompt from an earlier forward keeps its states, without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[tuple[int, ...], torch.Tensor] = {}

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        hidden = super()._hidden(batch)
        mixed = [hidden[:0]]
        new = {}
        rows = zip(split(batch, hidden), split(batch, batch.token_ids), prompts_of(batch), strict=True)
        for states, token_ids, prompt in rows:
            key = tuple(token_ids[:prompt].tolist())
            if prompt >= 16 and key in self._kept:
                mixed.append(torch.cat([self._kept[key], states[prompt:]]))
            else:
                mixed.append(states)
                new[key] = states[:prompt].detach()
        self._kept |= new
        return torch.cat(mixed)


@mutant(**WRONG_GRADIENT)
class KeepsPromptsBetweenForwards(KeepsPrompts):
    pass


@mutant(**WRONG_GRADIENT)
class KeepsPromptsWithinAStep(KeepsPrompts):
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if not grad:
            self._kept.clear()
        return super().forward(batch, grad, entropy)

    def step(self) -> StepReport:
        self._kept.clear()
        return super().step()
