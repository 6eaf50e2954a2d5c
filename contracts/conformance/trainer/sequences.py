"""Random training sequences, each at its own temperature, and how steps cut them into rows."""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoConfig

from contracts.records import TrainingSequence
from contracts.trainer import PackedBatch, TokenScores

LENGTHS = [5, 17, 1, 32, 2, 9, 24, 13]
ENTROPY_BONUS = 0.1
Rows = list[list[list[TrainingSequence]]]  # [row][rank][sequence]


@dataclass(frozen=True)
class Step:
    """One optimizer step: its micro-batches, and what is special about it."""

    name: str  # the name in messages, e.g. "one micro-batch a sequence"
    rows: Rows
    scale: float = 1.0  # factor of the loss; an infinite one applies on the last rank only
    reset: bool = False  # whether the optimizer is reset before the step

    @property
    def sequences(self) -> list[TrainingSequence]:
        """All sequences of the step."""
        return [sequence for row in self.rows for share in row for sequence in share]


def make_sequences(model: str, lengths: list[int], seed: int) -> list[TrainingSequence]:
    """Returns one random sequence for each length, with ids of `model`'s vocabulary.

    The padding token is left out: its embedding is zero, and a gradient through the norm of zero is noise.
    """
    config = AutoConfig.from_pretrained(model)
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


def all_on_rank(sequences: list[TrainingSequence], rank: int, ranks: int) -> Rows:
    """Returns one micro-batch per sequence, all on one rank; those of the others are empty."""
    return [[[sequence] if r == rank else [] for r in range(ranks)] for sequence in sequences]


def objective(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    """Returns -Σ w (A log p + bonus · H) over unmasked tokens, a scalar.

    Every token's gradient has its own weight.
    """
    assert scores.entropy is not None, "forward(entropy=True) gave no entropy"
    batch = batch.to(scores.logprobs.device)
    return -(batch.loss_weights * (batch.advantages * scores.logprobs + ENTROPY_BONUS * scores.entropy)).sum()
