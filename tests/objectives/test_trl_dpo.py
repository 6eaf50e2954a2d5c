"""DPO and its gradient against TRL's own loss, on the same log-probabilities.

`DPOTrainer._compute_loss` runs as it is; only what its two models say of the tokens is given to it.
"""

from dataclasses import replace

import pytest
import torch

from contracts.records import TrainingSequence, unsampled
from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.objectives.dpo import Dpo
from tests.builders import rollout

PROMPTS = (2, 5, 1)
LENGTHS = ((3, 4), (6, 1), (2, 2))  # of the preferred answer and of the other one
BETA = 0.3


def pairs() -> list[list[TrainingSequence]]:
    """Returns the two sequences of each pair, the preferred one first."""
    found = []
    for number, (prompt, lengths) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        answers = [unsampled([9] * prompt, [10 * (i + 1)] * tokens) for i, tokens in enumerate(lengths)]
        found.append(training_sequences(rollout(number, completions=answers), [1.0, -1.0]))
    return found


def test_value_and_gradient_are_trls(trl_trainers):
    generator = torch.Generator().manual_seed(0)
    longest = max(p + max(two) for p, two in zip(PROMPTS, LENGTHS, strict=True))
    rows = [pair[side] for side in (0, 1) for pair in pairs()]  # TRL: all preferred ones first
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, sequence in enumerate(rows):
        mask[row, : len(sequence.token_ids)] = torch.from_numpy(sequence.loss_mask)
    policy, reference = (-torch.rand(mask.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    policy.requires_grad_()
    # TRL's models say 0 of what is no answer.
    trainer = trl_trainers.GivenPreferences(
        (reference * mask)[:, 1:], beta=BETA
    )  # TRL's models say 0 of what is no answer
    inputs = {"input_ids": mask.long(), "attention_mask": mask.long(), "completion_mask": mask.long()}
    theirs = trainer._compute_loss(lambda **_: trainer.said((policy * mask)[:, 1:]), inputs, False)
    (their_gradient,) = torch.autograd.grad(theirs, policy)

    batch = packed(rows, reference)
    lengths = [len(sequence.token_ids) for sequence in rows]
    ours, sums = Dpo(BETA)(
        TokenScores(torch.cat([row[:n] for row, n in zip(policy, lengths, strict=True)])), batch
    )
    (our_gradient,) = torch.autograd.grad(ours, policy)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-10)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-10, atol=0)
    assert their_gradient.abs().max() > 0.01
    assert 0 < sums["preferred"] < mask.sum()


def packed(rows: list[TrainingSequence], reference: torch.Tensor) -> PackedBatch:
    """Returns the batch with a reference [rows, L] in float64, and weights of a mean over pairs."""
    batch = PackedBatch.pack(rows)
    scored = [row[: len(sequence.token_ids)] for row, sequence in zip(reference, rows, strict=True)]
    return replace(
        batch,
        reference_logprobs=torch.cat(scored),
        loss_weights=batch.loss_mask.double() / len(PROMPTS),
        advantages=batch.advantages.double(),
    )
