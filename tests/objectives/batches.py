"""Random steps in float64, for the tests of objectives: groups, rollouts of one or several sequences.

A token's id is its index in the tables of its step, which have its scores under the trainer's policy. So
every micro-batch of a step can be scored by itself.
"""

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from contracts.records import TrainingSequence
from contracts.token_fields import TokenField
from contracts.trainer import PackedBatch, TokenFields, TokenScores
from pipelinerl.normalisations import (
    GroupTokens,
    Normalisation,
    PerGroupToken,
    PerRolloutToken,
    PerSequence,
    PerStepToken,
    PerTokenLimit,
)

NORMALISATIONS = {
    "sequence": PerSequence(),
    "step_token": PerStepToken(),
    "group_token": PerGroupToken(),
    "rollout_token": PerRolloutToken(),
    "token_limit": PerTokenLimit(max_tokens=40),
}
STEP_VERSION = 9  # the newest weights that sampled a token have version 8
PARAMETERS = 4  # number of the parameters from which scores are computed

COLUMNS = ("logprobs", "proximal", "start_values", "entropy", "values")

RolloutSequences = list[TrainingSequence]


class Tables(NamedTuple):
    """The scores of the step's N tokens under the trainer's policy, by token id. All [N] float64."""

    logprobs: torch.Tensor
    proximal: torch.Tensor
    start_values: torch.Tensor
    entropy: torch.Tensor
    values: torch.Tensor
    slopes: torch.Tensor  # [3, N, PARAMETERS]: of log-probability, entropy and value


@dataclasses.dataclass(frozen=True)
class Step:
    rollouts: list[RolloutSequences]
    tables: Tables

    @property
    def sequences(self) -> list[TrainingSequence]:
        return [sequence for rollout in self.rollouts for sequence in rollout]


def random_step(
    seed: int,
    normalisation: Normalisation,
    groups: int = 4,
    members: int = 4,
    most_sequences: int = 3,
    advantage_by_turn: bool = True,
    failures: bool = True,
) -> Step:
    """Returns a random step, with the weights of the real normalisation.

    Ratios are 0.01 to 50, and advantages have both signs and zero. Some tokens, one complete rollout in eight
    and failed members are not in the loss.
    """
    rng = random.Random(seed)
    columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
    rollouts_of_groups = []
    for group_id in range(groups):
        present = members - (failures and rng.random() < 0.4)
        rollouts_of_groups.append(
            [
                _random_rollout(rng, columns, group_id, member, most_sequences, advantage_by_turn)
                for member in range(present)
            ]
        )
    tokens = [GroupTokens(members, np.array([in_loss(r) for r in group])) for group in rollouts_of_groups]
    weights = normalisation(tokens, groups * members)
    rollouts = [
        [msgspec.structs.replace(sequence, loss_weight=float(weight)) for sequence in rollout]
        for group, weights_of_group in zip(rollouts_of_groups, weights, strict=True)
        for rollout, weight in zip(group, weights_of_group, strict=True)
    ]
    generator = torch.Generator().manual_seed(seed)
    shape = (3, len(columns["logprobs"]), PARAMETERS)
    slopes = torch.randn(shape, generator=generator, dtype=torch.float64)
    tensors = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
    return Step(rollouts, Tables(**tensors, slopes=slopes))


def _random_rollout(
    rng: random.Random, columns: dict[str, list[float]], group_id: int, member: int, most: int, by_turn: bool
) -> RolloutSequences:
    drift = rng.gauss(0, 0.2)  # of the complete rollout: some means exceed the clip, some do not
    far_share = rng.choice([0.0, 0.5])
    reward = rng.choice([-1, 1]) * rng.uniform(0.1, 2)
    whole_is_masked = rng.random() < 1 / 8
    sequences = []
    for _ in range(rng.randint(1, most)):
        sampled, advantages = [], []
        for _ in range(rng.randint(1, 3)):
            prompt, answer = rng.randint(1, 4), rng.randint(1, 6)
            advantage = reward
            if by_turn:
                advantage = rng.choice([reward, -reward, 0.0, rng.gauss(0, 1)])
            sampled += [False] * prompt + [True] * answer
            advantages += [0.0] * prompt + [advantage] * answer
        behaviour, reference = [], []
        first_id = len(columns["logprobs"])
        for is_sampled in sampled:
            logprob = rng.uniform(-12, -5)
            log_ratio = drift + rng.gauss(0, 0.15)
            if rng.random() < far_share:
                log_ratio = rng.uniform(math.log(0.01), math.log(50))
            columns["logprobs"].append(logprob)
            columns["proximal"].append(logprob - rng.gauss(0, 0.3))
            columns["entropy"].append(rng.uniform(0, 5))
            columns["values"].append(rng.gauss(0, 1))
            columns["start_values"].append(columns["values"][-1] + rng.gauss(0, 0.4))
            behaviour.append(logprob - log_ratio if is_sampled else 0.0)
            reference.append(logprob + rng.gauss(0, 1))
        sampled = np.array(sampled)
        kept = np.array([not whole_is_masked and rng.random() < 0.85 for _ in sampled])
        lags = np.array([rng.randint(1, STEP_VERSION) for _ in sampled])
        sequences.append(
            TrainingSequence(
                rollout_id=f"{group_id}-{member}",
                group_id=group_id,
                temperature=1.0,
                loss_weight=0.0,
                token_ids=np.arange(first_id, first_id + len(sampled), dtype=np.int32),
                loss_mask=sampled & kept,
                behaviour_logprobs=np.array(behaviour, dtype=np.float32),
                versions=np.where(sampled, STEP_VERSION - lags, -1).astype(np.int32),
                advantages=np.array(advantages, dtype=np.float32),
                reference_logprobs=np.array(reference, dtype=np.float32),
            )
        )
    return sequences


def in_loss(rollout: RolloutSequences) -> int:
    """Returns the number of the rollout's tokens in the loss."""
    return sum(int(sequence.loss_mask.sum()) for sequence in rollout)


def with_token_fields(step: Step, declared: Mapping[str, TokenField], seed: int) -> Step:
    """Returns the step with random values in these fields: from 0 to 1, or of 0 and 1."""
    rng = np.random.default_rng(seed)

    def values(field: TokenField, tokens: int) -> np.ndarray:
        numbers = rng.random(tokens) if field.dtype == "float32" else rng.integers(0, 2, tokens)
        return numbers.astype(field.array_dtype)

    def with_fields(sequence: TrainingSequence) -> TrainingSequence:
        fields = {name: values(field, len(sequence.token_ids)) for name, field in declared.items()}
        return msgspec.structs.replace(sequence, token_fields=fields)

    rollouts = [[with_fields(sequence) for sequence in rollout] for rollout in step.rollouts]
    return dataclasses.replace(step, rollouts=rollouts)


def packed(sequences: Sequence[TrainingSequence], token_fields: Mapping[str, TokenField] = {}) -> PackedBatch:
    """Returns the real batch with its floats widened to float64.

    Weights such as 1/3 are taken from the sequence again, because float32 has rounded them.
    """
    batch = PackedBatch.pack(sequences, STEP_VERSION, token_fields)
    lengths = torch.tensor([len(s.token_ids) for s in sequences], dtype=torch.int64)
    weights = torch.tensor([s.loss_weight for s in sequences], dtype=torch.float64)
    weights = torch.repeat_interleave(weights, lengths) * batch.loss_mask
    assert torch.equal(weights.float(), batch.loss_weights)
    floats = {
        field.name: value.double()
        for field in dataclasses.fields(batch)
        if isinstance(value := getattr(batch, field.name), torch.Tensor) and value.dtype == torch.float32
    }
    wide = {n: t.double() if t.is_floating_point() else t for n, t in batch.token_fields.items()}
    return dataclasses.replace(batch, **(floats | {"loss_weights": weights}), token_fields=TokenFields(wide))


def in_later_epoch(batch: PackedBatch, tables: Tables) -> PackedBatch:
    """Returns the batch with what the step's first epoch has computed."""
    return dataclasses.replace(
        batch,
        proximal_logprobs=tables.proximal[batch.token_ids],
        start_values=tables.start_values[batch.token_ids],
    )


def leaf_scores(batch: PackedBatch, tables: Tables) -> TokenScores:
    """Returns scores that are leaves: their gradients are the loss's derivatives by each token's scores."""
    columns = (tables.logprobs, tables.entropy, tables.values)
    return TokenScores(*(column[batch.token_ids].clone().requires_grad_() for column in columns))


def scores_of_parameters(batch: PackedBatch, tables: Tables, parameters: torch.Tensor) -> TokenScores:
    """Returns the same scores as functions of parameters [PARAMETERS] that all tokens share.

    They equal the tables at zero.
    """
    columns = (tables.logprobs, tables.entropy, tables.values)
    return TokenScores(
        *(
            column[batch.token_ids] + slope[batch.token_ids] @ parameters
            for column, slope in zip(columns, tables.slopes, strict=True)
        )
    )
