"""Advantages of tokens by GAE: what is skipped, where rewards are, and rollouts of many tokens."""

import numpy as np
import pytest
import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.objectives.value_baseline import ValueBaseline
from tests.builders import completion, rollout
from tests.objectives.advantage_oracles import gae


class Recording:
    """A policy that keeps the advantages which it is given."""

    def __call__(self, scores, batch):
        self.advantages = batch.advantages
        return 0.0 * scores.logprobs.sum(), {}


def advantages_of(batch: PackedBatch, values: torch.Tensor, lam: float) -> torch.Tensor:
    policy = Recording()
    ValueBaseline(policy, 0.5, gae_lambda=lam)(TokenScores(values, values, values), batch)
    return policy.advantages


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
