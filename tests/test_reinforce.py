import math

import pytest
import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.reinforce import Reinforce
from pipelinerl.sequences import training_sequences
from tests.builders import group


def batch_of(groups, rollouts):
    sequences = [s for g in groups for r in g for s in training_sequences(r, [r.reward], 1 / rollouts)]
    return PackedBatch.pack(sequences)


def test_value_and_gradient_follow_the_formula():
    """Against a float64 transcription of J = 1/B Σ sg(min(π/μ, c)) A log π, token by token."""
    batch = batch_of([group(0, [0.7, -0.4])], rollouts=4)
    logprobs = torch.linspace(-3.0, 1.0, batch.num_tokens).requires_grad_()
    loss, sums = Reinforce(max_importance_weight=1.5)(TokenScores(logprobs), batch)
    loss.backward()
    expected, gradient, truncated = 0.0, [], 0
    for t in range(batch.num_tokens):
        if not batch.loss_mask[t]:
            gradient.append(0.0)
            continue
        ratio = math.exp(logprobs[t].item() - float(batch.behaviour_logprobs[t]))
        weight = min(ratio, 1.5)
        truncated += ratio > 1.5
        expected -= weight * float(batch.advantages[t]) * logprobs[t].item() / 4
        gradient.append(-weight * float(batch.advantages[t]) / 4)
    assert math.isclose(loss.item(), expected, rel_tol=1e-5)
    assert torch.allclose(logprobs.grad, torch.tensor(gradient), atol=1e-6)
    assert sums["clip_fraction"] == truncated > 0


def test_the_gradient_does_not_depend_on_how_the_step_is_cut():
    one, other = group(0, [1.0, -1.0]), group(1, [0.5, -0.5])
    whole = batch_of([one, other], rollouts=4)
    logprobs = torch.linspace(-2.0, 0.0, whole.num_tokens)

    def gradient(batch, values):
        values = values.clone().requires_grad_()
        Reinforce(5.0)(TokenScores(values), batch)[0].backward()
        return values.grad

    cut = whole.num_tokens // 2
    parts = [
        gradient(batch_of([one], 4), logprobs[:cut]),
        gradient(batch_of([other], 4), logprobs[cut:]),
    ]
    assert torch.equal(gradient(whole, logprobs), torch.cat(parts))


def test_a_cap_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="max_importance_weight must be positive"):
        Reinforce(0.0)
