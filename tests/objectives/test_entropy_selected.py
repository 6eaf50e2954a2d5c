"""Which tokens `entropy_selected` selects, and against TRL's mask on single rollouts."""

import dataclasses

import pytest
import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.objectives.entropy_selected import EntropySelected
from tests.builders import completion, rollout


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


def test_tokens_of_the_same_entropy_are_selected_together():
    assert weights_of([1.0, 2.0, 1.0, 0.0], share=0.5) == pytest.approx([4 / 3, 4 / 3, 4 / 3, 0])
    assert weights_of([0.0] * 5, share=0.2) == [1.0] * 5


def test_a_share_that_is_no_binary_fraction_is_not_rounded_up():
    """0.07 times 100 is 7.000000000000001."""
    assert sum(weight > 0 for weight in weights_of([*map(float, range(100))], share=0.07)) == 7
