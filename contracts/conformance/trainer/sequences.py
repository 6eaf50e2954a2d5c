"""Makes random training sequences, each at its own temperature, and divides steps into rows."""

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from msgspec.structs import replace

from contracts.causal_model import causal_config
from contracts.records import TrainingSequence
from contracts.trainer import PackedBatch, TokenScores

LENGTHS = [5, 17, 1, 32, 2, 9, 24, 13]
ENTROPY_BONUS = 0.1
GROUP_LENGTHS = [40, 34, 47, 40, 40]  # of the sequences of a group
ALIKE = 18  # tokens of the group's common prefix, more than a page of a cache often has
PROMPT = 27  # tokens before the first one in the loss
WARMER = 0.2  # difference between the temperature of the last member and that of the others
BLOCK = 4096  # tokens, more than a chunk of the head or a block of attention usually has
CHUNK = 1024  # predictions; the size of a head's chunk is often a power of two up to this
BLOCK_OPTIONS = ("head_chunk", "attention_block")  # options by which a backend declares these sizes
Rows = list[list[list[TrainingSequence]]]  # [row][rank][sequence]
Order = Literal["in turn", "forwards first", "last first"]
Call = Literal["probe", "gather", "export", "save"]


@dataclass(frozen=True)
class Step:
    """One optimizer step: its micro-batches, and its special conditions."""

    name: str  # the name in messages, e.g. "one micro-batch a sequence"
    rows: Rows
    scale: float = 1.0  # factor of the loss; if it is not finite, it applies to one rank only
    spoilt: int = -1  # that rank; -1 is the last
    reset: bool = False  # True if the optimizer is reset before the step
    entropy: bool = True  # True if entropies are requested, and are part of the loss
    order: Order = "in turn"  # the order of forwards and backwards
    probe: tuple[TrainingSequence, ...] = ()  # scored with grad=False before each backward
    before_step: tuple[Call, ...] = ()  # calls between the last backward and `step`

    @property
    def sequences(self) -> list[TrainingSequence]:
        """All sequences of the step."""
        return [sequence for row in self.rows for share in row for sequence in share]


def make_sequences(model: str, lengths: list[int], seed: int) -> list[TrainingSequence]:
    """Returns one random sequence for each length, with ids of `model`'s vocabulary.

    The padding token is left out: its embedding is zero, and a gradient through the norm of zero is noise.
    """
    config = causal_config(model).get_text_config()
    allowed = np.setdiff1d(np.arange(config.vocab_size), [config.pad_token_id or 0]).astype(np.int32)
    rng = np.random.default_rng(seed)
    return [
        TrainingSequence(
            rollout_id=str(i),
            group_id=i,
            loss_weight=1 / len(lengths),
            temperature=round(float(rng.choice([rng.uniform(0.5, 0.9), rng.uniform(1.1, 1.5)])), 3),
            token_ids=rng.choice(allowed, n),
            loss_mask=rng.random(n) < 0.8,
            behaviour_logprobs=rng.normal(-4, 1, n).astype(np.float32),
            versions=np.zeros(n, np.int32),
            advantages=rng.normal(size=n).astype(np.float32),
        )
        for i, n in enumerate(lengths)
    ]


def long_lengths(options: dict[str, object], context: int) -> list[int]:
    """Returns the lengths of a pack longer than two of each block that a backend declares, or than BLOCK.

    One sequence is long and most are short, and none ends at a power of two. None is longer than `context`.
    """
    declared = [size for name in BLOCK_OPTIONS if isinstance(size := options.get(name), int)]
    least = 0 if len(declared) == len(BLOCK_OPTIONS) else BLOCK
    tokens = max([least, *(2 * size for size in declared)]) + 37
    lengths = [2, 1, min(tokens * 2 // 7, context), 1, 5]
    cycle = [tokens // 7, 3, tokens // 17, 1, 66, 2, tokens // 11, 33, 130]
    while (rest := tokens - sum(lengths)) > 0:
        lengths.append(max(1, min(cycle[len(lengths) % len(cycle)], rest, context)))
    return lengths


def make_long_pack(model: str, options: dict[str, object], context: int, seed: int) -> list[TrainingSequence]:
    """Returns a pack of `long_lengths`, and a group whose prompts differ only in part.

    The number of predictions is one more than a multiple of `CHUNK`, so that a head's last chunk has one
    prediction.
    """
    lengths = long_lengths(options, context)
    predictions = sum(length - 1 for length in [*lengths, *GROUP_LENGTHS])
    while rest := (1 - predictions) % CHUNK:
        lengths.append(min(rest + 1, context))
        predictions += lengths[-1] - 1
    return make_sequences(model, lengths, seed) + _group(model, seed + 1)


def _group(model: str, seed: int) -> list[TrainingSequence]:
    """Returns sequences of one temperature with a common prefix, which differ later in their prompts.

    The last two have the tokens of the first but other advantages; the last also has another temperature.
    """
    first, *others, again, warmer = make_sequences(model, GROUP_LENGTHS, seed)
    alike = [
        first,
        *(
            replace(
                s,
                token_ids=np.concatenate([first.token_ids[:ALIKE], s.token_ids[ALIKE:]]),
                temperature=first.temperature,
            )
            for s in others
        ),
        replace(again, token_ids=first.token_ids, temperature=first.temperature),
        replace(warmer, token_ids=first.token_ids, temperature=first.temperature + WARMER),
    ]
    return [replace(s, group_id=0, loss_mask=np.arange(len(s.token_ids)) >= PROMPT) for s in alike]


def without_a_signal(sequences: list[TrainingSequence]) -> list[TrainingSequence]:
    """Returns the sequences, some with all advantages 0, and some with no token in the loss."""
    changes: tuple[dict[str, float], ...] = ({}, {"advantages": 0.0}, {"loss_mask": False})
    return [
        replace(s, **{name: np.full_like(getattr(s, name), value) for name, value in change.items()})
        for s, change in zip(sequences, itertools.cycle(changes), strict=False)
    ]


def round_robin(sequences: list[TrainingSequence], ranks: int, per_share: int = 1) -> Rows:
    """Returns rows of shares of `per_share` sequences, one share per rank.

    The last row may have empty shares.
    """
    shares = [sequences[i : i + per_share] for i in range(0, len(sequences), per_share)]
    shares += [[]] * (-len(shares) % ranks)
    return [shares[i : i + ranks] for i in range(0, len(shares), ranks)]


def split_evenly(sequences: list[TrainingSequence], ranks: int) -> Rows:
    """Returns one row in which every rank has some sequences."""
    return [[sequences[rank::ranks] for rank in range(ranks)]]


def all_in_one(sequences: list[TrainingSequence], ranks: int) -> Rows:
    """Returns one row, in which only the first rank's micro-batch has sequences."""
    return [[sequences, *([[]] * (ranks - 1))]]


def all_on_rank(sequences: list[TrainingSequence], rank: int, ranks: int) -> Rows:
    """Returns one micro-batch per sequence, all on one rank; the other ranks' are empty."""
    return [[[sequence] if r == rank else [] for r in range(ranks)] for sequence in sequences]


def objective(scores: TokenScores, batch: PackedBatch, entropy: bool = True) -> torch.Tensor:
    """Returns -Σ w (A log p + bonus · H) over unmasked tokens, a scalar. Without `entropy` the bonus is 0.

    Every token's gradient has its own weight.
    """
    batch = batch.to(scores.logprobs.device)
    if not entropy:
        return -(batch.loss_weights * batch.advantages * scores.logprobs).sum()
    assert scores.entropy is not None, "forward(entropy=True) gave no entropy"
    return -(batch.loss_weights * (batch.advantages * scores.logprobs + ENTROPY_BONUS * scores.entropy)).sum()
