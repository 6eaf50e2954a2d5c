"""`masked` beside its policy: without rules, and what its rules do to several sequences of one rollout."""

import dataclasses

import pytest
import torch

from pipelinerl.normalisations import PerSequence
from pipelinerl.objectives.base import log_ratio, rollout_minimum
from pipelinerl.objectives.gspo import Gspo
from pipelinerl.objectives.masked import Masked
from pipelinerl.objectives.ppo_clip import PpoClip
from pipelinerl.objectives.reinforce import Reinforce
from pipelinerl.objectives.rules import SmallestRatio
from tests.objectives.batches import in_later_epoch, leaf_scores, packed, random_step
from tests.objectives.cases import RULES

POLICIES = {"ppo_clip": PpoClip(0.2, 0.28), "reinforce": Reinforce(1.3), "gspo": Gspo(0.1, 0.15)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", POLICIES)
def test_without_rules_it_is_its_policy_bit_for_bit(name, dtype):
    step = random_step(3, PerSequence())
    batch = packed(step.sequences)
    found = {}
    for objective in (POLICIES[name], Masked(POLICIES[name], [], "behaviour")):
        scores = leaf_scores(batch, step.tables)
        if dtype == torch.float32:
            scores = dataclasses.replace(scores, logprobs=scores.logprobs.detach().float().requires_grad_())
        loss, sums = objective(scores, batch)
        loss.backward()
        found[type(objective)] = loss, scores.logprobs.grad, sums
    (loss, gradient, sums), (loss_of_masked, gradient_of_masked, sums_of_masked) = found.values()
    assert torch.equal(loss, loss_of_masked) and torch.equal(gradient, gradient_of_masked)
    assert sums == sums_of_masked


@pytest.mark.parametrize("name", RULES)
def test_a_factor_has_no_gradient_and_is_one_for_what_the_policy_itself_has_sampled(name):
    step = random_step(5, PerSequence())
    batch = packed(step.sequences)
    scores = leaf_scores(batch, step.tables)
    own = dataclasses.replace(batch, behaviour_logprobs=scores.logprobs.detach())
    factor = RULES[name][0](log_ratio(scores, own).detach(), own)
    assert torch.equal(factor.values, torch.ones_like(factor.values)) and not factor.bound.any()


def test_one_far_token_masks_all_sequences_of_its_rollout_and_no_other():
    step = random_step(8, PerSequence())
    batch = packed(step.sequences)
    scores = leaf_scores(batch, step.tables)
    log_rho = log_ratio(scores, batch).detach().clamp(min=-1)
    several = next(r for r in step.rollouts if len(r) > 1 and r[0].tokens_in_loss and r[1].tokens_in_loss)
    of_rollout = torch.tensor([s.rollout_id == several[0].rollout_id for s in step.sequences])
    tokens = of_rollout[batch.sequence_ids]
    first = (tokens & batch.loss_mask).nonzero()[0]
    log_rho[first] = -12.0
    factor = SmallestRatio(1e-5)(log_rho, batch)
    assert torch.equal(factor.bound, tokens)


def test_a_rollout_without_tokens_in_the_loss_has_no_least_value():
    step = random_step(2, PerSequence())
    batch = packed(step.sequences)
    nothing = dataclasses.replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    assert rollout_minimum(torch.zeros(batch.num_tokens), nothing).isinf().all()


def test_around_the_proximal_policy_the_policy_inside_sees_no_lag():
    """Where π_prox is π, PPO's ratio is 1: its gradient is A, and nothing is clipped."""
    step = random_step(4, PerSequence())
    batch = in_later_epoch(packed(step.sequences), step.tables)
    scores = leaf_scores(batch, step.tables)
    batch = dataclasses.replace(batch, proximal_logprobs=scores.logprobs.detach())
    loss, sums = Masked(PpoClip(0.2, 0.28), [], around="proximal")(scores, batch)
    (gradient,) = torch.autograd.grad(loss, [scores.logprobs])
    torch.testing.assert_close(gradient, -batch.advantages * batch.loss_weights)
    assert sums["clip_fraction"] == 0
