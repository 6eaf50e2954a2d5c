"""Which tokens `entropy_selected` selects, and against TRL's mask on single rollouts."""

import dataclasses

import pytest
import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.normalisations import PerRolloutToken, PerSequence
from pipelinerl.objectives.entropy_selected import EntropySelected
from pipelinerl.objectives.ppo_clip import PpoClip
from tests.builders import completion, rollout
from tests.objectives.batches import in_loss, leaf_scores, packed, random_step
from tests.objectives.test_trl import BOUNDS, PPO, Rows


class Recording:
    """A policy that keeps the weights which it is given."""

    def __call__(self, scores, batch):
        self.weights = batch.loss_weights
        return 0.0 * scores.logprobs.sum(), {}


def weights_of(entropies: list[float], share: float) -> list[float]:
    """Returns the weights of a rollout whose tokens have these entropies, and 1 each before."""
    policy = Recording()
    (sequence,) = training_sequences(rollout(0, completions=[completion([1], [2] * len(entropies))]), [1.0])
    batch = PackedBatch.pack([sequence])
    batch = dataclasses.replace(batch, loss_weights=batch.loss_mask.float())
    entropy = torch.tensor([99.0, *entropies])
    EntropySelected(policy, share)(TokenScores(entropy, entropy), batch)
    return policy.weights[1:].tolist()


def test_the_weights_of_a_rollout_keep_their_sum():
    assert weights_of([0.5, 2.0, 0.1, 3.0, 1.0], share=0.4) == [0, 2.5, 0, 2.5, 0]
    assert weights_of([0.5, 2.0, 0.1, 3.0, 1.0], share=0.41) == pytest.approx([0, 5 / 3, 0, 5 / 3, 5 / 3])
    assert weights_of([1.0, 2.0], share=0.01) == [0, 2]


def test_tokens_of_the_same_entropy_are_selected_together():
    assert weights_of([1.0, 2.0, 1.0, 0.0], share=0.5) == pytest.approx([4 / 3, 4 / 3, 4 / 3, 0])
    assert weights_of([0.0] * 5, share=0.2) == [1.0] * 5


def test_a_share_that_is_no_binary_fraction_is_not_rounded_up():
    """0.07 times 100 is 7.000000000000001."""
    assert sum(weight > 0 for weight in weights_of([*map(float, range(100))], share=0.07)) == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_all_tokens_it_is_its_policy_bit_for_bit(dtype):
    step = random_step(3, PerSequence())
    batch = packed(step.sequences)
    found = []
    for objective in (PpoClip(0.2, 0.28), EntropySelected(PpoClip(0.2, 0.28), 1.0)):
        scores = leaf_scores(batch, step.tables)
        logprobs = scores.logprobs.detach().to(dtype).requires_grad_()
        loss, _ = objective(dataclasses.replace(scores, logprobs=logprobs), batch)
        found += [loss, *torch.autograd.grad(loss, [logprobs])]
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


def test_on_a_single_rollout_the_selection_is_that_of_trl(trl_trainers, tmp_path):
    """TRL divides by all n tokens and not by the s selected. Its threshold is the quantile of a batch."""
    trainer = trl_trainers.GivenScores(
        output_dir=str(tmp_path), loss_type="grpo", top_entropy_quantile=0.2, **BOUNDS
    )
    compared = 0
    for seed in range(8):
        step = random_step(seed, PerRolloutToken(), most_sequences=1, failures=False)
        for sequences in step.rollouts:
            n = in_loss(sequences)
            if n == 0:
                continue
            batch = packed(sequences)
            rows = Rows(batch)
            scores = leaf_scores(batch, step.tables)
            scores = dataclasses.replace(
                scores, entropy=scores.entropy.detach().float().double()
            )  # as in TRL
            inputs = rows.inputs(batch, rows.of(batch.advantages))
            theirs = trainer.loss(rows.of(scores.logprobs), rows.of(scores.entropy), inputs)
            ours, sums = EntropySelected(PPO, 0.2)(scores, batch)
            scale = sums["selected_by_entropy"] / n * len(step.rollouts)
            torch.testing.assert_close(ours * scale, theirs, rtol=1e-10, atol=0)
            (mine,) = torch.autograd.grad(ours * scale, [scores.logprobs])
            (other,) = torch.autograd.grad(theirs, [scores.logprobs])
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-14)
            compared += n > 5
    assert compared > 20
