"""What penalty and distillation do on average over the tokens that μ may sample, beside the exact KL."""

import dataclasses

import pytest
import torch

from contracts.trainer import TokenScores
from pipelinerl.normalisations import PerSequence
from pipelinerl.objectives.base import Objective
from pipelinerl.objectives.distillation import Distillation
from pipelinerl.objectives.kl import KlToReference
from pipelinerl.objectives.ppo_clip import PpoClip
from pipelinerl.objectives.reinforce import Reinforce
from tests.objectives.batches import packed, random_step

WORDS = 7


@pytest.fixture
def policies() -> tuple[torch.Tensor, ...]:
    """The logits of π, which are learnt, and log μ and log ref, over all words."""
    generator = torch.Generator().manual_seed(1)
    logits, sampled, reference = torch.randn(3, WORDS, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), sampled.log_softmax(0), reference.log_softmax(0)


def expected_gradient(objective: Objective, policies, lag: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss's mean over a token drawn from μ, or from π itself, and its gradient by logits."""
    logits, behaviour, reference = policies
    logprobs = logits.log_softmax(0)
    behaviour = behaviour if lag else logprobs.detach()
    step = random_step(0, PerSequence())
    one = packed(step.sequences[:1])
    index = one.loss_mask.nonzero()[:1, 0].repeat(WORDS)
    batch = dataclasses.replace(
        one,
        token_ids=torch.arange(WORDS),
        loss_mask=one.loss_mask[index],
        versions=one.versions[index],
        loss_weights=behaviour.exp(),
        behaviour_logprobs=behaviour,
        advantages=torch.zeros(WORDS, dtype=torch.float64),
        reference_logprobs=reference,
    )
    loss, _ = objective(TokenScores(logprobs), batch)
    return loss, torch.autograd.grad(loss, [logits])[0]


def exact(policies) -> tuple[torch.Tensor, torch.Tensor]:
    logits, _, reference = policies
    logprobs = logits.log_softmax(0)
    divergence = (logprobs.exp() * (logprobs - reference)).sum()
    return divergence, torch.autograd.grad(divergence, [logits])[0]


@pytest.mark.parametrize("lag", [True, False])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_with_the_importance_weight_the_gradient_is_that_of_the_kl(estimator, lag, policies):
    found, gradient = expected_gradient(KlToReference(1.0, estimator), policies, lag)
    divergence, wanted = exact(policies)
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-14)
    if estimator != "k2":  # half a square is no KL, though its gradient is
        torch.testing.assert_close(found, divergence, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("estimator", "lag"), [("k3", True), ("k3", False), ("k2", True)])
def test_without_it_the_gradient_is_another(estimator, lag, policies):
    _, gradient = expected_gradient(KlToReference(1.0, estimator, unbiased=False), policies, lag)
    assert (gradient - exact(policies)[1]).abs().max() > 0.01


def test_without_it_and_without_lag_k2_has_the_gradient_too(policies):
    _, gradient = expected_gradient(KlToReference(1.0, "k2", unbiased=False), policies, lag=False)
    torch.testing.assert_close(gradient, exact(policies)[1], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("lag", [True, False])
@pytest.mark.parametrize("policy", [Reinforce(1e9), PpoClip(1.0, 1e9)])
def test_distillation_has_the_gradient_of_the_kl_to_the_teacher(policy, lag, policies):
    _, gradient = expected_gradient(Distillation(policy, 0.0, 0.7), policies, lag)
    torch.testing.assert_close(gradient, 0.7 * exact(policies)[1], rtol=1e-10, atol=1e-14)
