"""Advantages of tokens by GAE: what is skipped, where rewards are, and rollouts of many tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.advantages import Return
from pipelinerl.batching.credit import per_turn
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.normalisations import PerSequence
from pipelinerl.objectives.gae import later_errors
from pipelinerl.objectives.value_baseline import ValueBaseline
from tests.builders import completion, rollout
from tests.objectives.advantage_oracles import gae
from tests.objectives.batches import STEP_VERSION, packed, random_step


class Recording:
    """A policy that keeps the advantages which it is given."""

    def __call__(self, scores, batch):
        self.advantages = batch.advantages
        return 0.0 * scores.logprobs.sum(), {}


def advantages_of(batch: PackedBatch, values: torch.Tensor, lam: float) -> torch.Tensor:
    policy = Recording()
    ValueBaseline(policy, 0.5, gae_lambda=lam)(TokenScores(values, values, values), batch)
    return policy.advantages


@pytest.mark.parametrize("later_epoch", [False, True])
def test_without_bootstrapping_it_is_the_return_minus_the_value_bit_for_bit(later_epoch):
    step = random_step(3, PerSequence())
    batch = PackedBatch.pack(step.sequences, STEP_VERSION)
    values = step.tables.values[batch.token_ids].float().requires_grad_()
    if later_epoch:
        batch = replace(batch, start_values=step.tables.start_values[batch.token_ids].float())
    start = batch.start_values if later_epoch else values.detach()
    policy = Recording()
    loss, sums = ValueBaseline(policy, 0.5)(TokenScores(values, values, values), batch)
    assert torch.equal(policy.advantages, (batch.advantages - start).where(batch.loss_mask, 0.0))
    squared = (values - batch.advantages).where(batch.loss_mask, 0.0).square()
    assert torch.equal(loss, 0.5 * (0.5 * (squared * batch.loss_weights).sum()))
    assert torch.equal(sums["value_error"], squared.detach().sum())


def test_prompts_and_masked_tokens_are_skipped_within_a_rollout():
    """Two turns in one sequence and one in another; the second token of the first turn is masked."""
    turns = [completion([1], [2, 3, 4]), completion([1, 2, 3, 4, 9], [5]), completion([7, 7], [8, 8])]
    first, second = training_sequences(rollout(0, completions=turns), [2.0, 2.0, 2.0])
    first.loss_mask[2] = False
    (other,) = training_sequences(rollout(1, completions=[completion([1], [2])]), [5.0])
    batch = packed([first, other, second])
    assert batch.loss_mask.tolist() == [*map(bool, [0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 1])]
    values = torch.arange(1.0, 13.0, dtype=torch.float64)
    found = advantages_of(batch, values, lam=0.5)
    of_rollout = [1, 3, 5, 10, 11]
    expected = torch.zeros(12, dtype=torch.float64)
    by_hand = gae([0, 0, 0, 0, 2.0], [2.0, 4.0, 6.0, 11.0, 12.0], 0.5)
    expected[of_rollout] = torch.tensor(by_hand, dtype=torch.float64)
    expected[7] = 5.0 - 8.0
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_with_credit_for_turns_each_reward_is_at_the_end_of_its_turn():
    turns = [completion([1], [2, 3]), completion([1, 2, 3, 9], [4]), completion([7], [8, 8])]
    one = rollout(0, completions=turns, turn_rewards=[1.0, -0.5], reward=4.5)
    (advantages,) = per_turn([one], Return())
    batch = packed(training_sequences(one, advantages))
    values = torch.randn(
        len(batch.token_ids), dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    found = advantages_of(batch, values, lam=0.8)[batch.loss_mask]
    expected = gae([0, 1.0, -0.5, 0, 4.0], values[batch.loss_mask].tolist(), 0.8)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 0.9999])
def test_many_tokens_in_float32(lam):
    """0.95 to the power of 16,384 is far below what a float can hold."""
    lengths = [16384, 1, 3, 4096]
    answers = [completion([1], [2] * length) for length in lengths]
    sequences = [training_sequences(rollout(i, completions=[a]), [1.0])[0] for i, a in enumerate(answers)]
    batch = PackedBatch.pack(sequences)
    values = torch.rand(batch.num_tokens, generator=torch.Generator().manual_seed(1))
    found = advantages_of(batch, values, lam)
    starts = batch.cu_seqlens.tolist()
    for start, end in zip(starts, starts[1:], strict=False):
        expected = gae([0.0] * (end - start - 2) + [1.0], values[start + 1 : end].tolist(), lam)
        np.testing.assert_allclose(found[start + 1 : end], expected, rtol=1e-5, atol=1e-6)


def test_a_batch_without_tokens_in_the_loss_has_no_errors():
    for sequences in ([], random_step(0, PerSequence()).sequences):
        batch = PackedBatch.pack(sequences)
        batch.loss_mask[:] = False
        assert not later_errors(torch.ones(batch.num_tokens), batch, 0.9).any()
