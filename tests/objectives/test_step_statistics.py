"""What a step reports of its tokens, against sums by hand over all of them."""

import math

import msgspec
import numpy as np
import pytest
import torch

from contracts.records import TrainingSequence
from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.normalisations import PerSequence
from pipelinerl.objectives.cross_entropy import CrossEntropy
from pipelinerl.objectives.ppo_clip import PpoClip
from pipelinerl.training.ranks import Ranks
from pipelinerl.training.step_statistics import StepStatistics
from tests.limits import HANG_S
from tests.objectives import oracles
from tests.objectives.batches import STEP_VERSION, leaf_scores, packed, random_step
from tests.objectives.cases import tokens_of


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_statistics_of_a_step_are_those_of_its_untruncated_ratios(seed, micro_batches):
    step = random_step(seed, PerSequence())
    objective, statistics = PpoClip(0.2, 0.28), StepStatistics()
    for i in range(micro_batches):
        batch = packed([s for rollout in step.rollouts[i::micro_batches] for s in rollout])
        scores = leaf_scores(batch, step.tables)
        statistics.update(scores, batch, *objective(scores, batch))
    report = statistics.report(Ranks(0, 1, timeout_s=HANG_S))

    tokens = tokens_of(step.sequences, step.tables)
    expected = oracles.ppo_clip(0.2, 0.28)(tokens)
    trained = [token for token in tokens if token.in_loss]
    n, ratios = len(trained), [token.ratio for token in trained]
    gaps = [abs(token.log_ratio) for token in trained]
    assert max(ratios) > 20 and min(ratios) < 0.05  # a bound on them would be seen
    by_hand = {
        "trained_tokens": n,
        "loss": expected.loss,
        "ess": sum(ratios) ** 2 / (n * sum(r * r for r in ratios)),
        "ratio_mean_abs_log": sum(gaps) / n,
        "ratio_max_abs_log": max(gaps),
        "mismatch_k3": sum(r - 1 - math.log(r) for r in ratios) / n,
        "entropy": sum(token.entropy for token in trained) / n,
        "clip_fraction": expected.sums["clip_fraction"] / n,
    }
    versions = np.concatenate([s.versions[s.loss_mask] for s in step.sequences])
    for lag in range(1, 9):  # 8 stands for 9 too
        of_lag = [gap for gap, v in zip(gaps, versions, strict=True) if min(STEP_VERSION - v, 8) == lag]
        by_hand[f"logprob_gap_at_lag_{lag}"] = sum(of_lag) / len(of_lag)
    assert report == pytest.approx(by_hand, rel=1e-10)


def test_one_token_far_away_leaves_an_effective_sample_of_one():
    """The square of its ratio overflows float32, in which backends score."""
    step = random_step(0, PerSequence())
    batch = PackedBatch.pack(step.sequences, STEP_VERSION)
    far = batch.behaviour_logprobs.clone()
    far[batch.loss_mask.nonzero()[0]] += 50
    statistics = StepStatistics()
    statistics.update(TokenScores(far, torch.zeros_like(far)), batch, torch.zeros(()), {})
    report = statistics.report(Ranks(0, 1, timeout_s=HANG_S))
    assert report["ess"] == pytest.approx(1 / report["trained_tokens"]) and report["mismatch_k3"] > 1e18


def test_what_nobody_sampled_has_no_ratio():
    """Half of the tokens have version -1: importance weights and lag are those of the other half."""
    step = random_step(1, PerSequence())
    rollouts = [[r for i, r in enumerate(step.rollouts) if i % 2 == odd] for odd in (0, 1)]
    sampled = [sequence for rollout in rollouts[0] for sequence in rollout]
    of_a_file = [
        msgspec.structs.replace(s, versions=np.full_like(s.versions, -1)) for r in rollouts[1] for s in r
    ]

    def reported(sequences: list[TrainingSequence]) -> dict[str, float]:
        batch = packed(sequences)
        statistics = StepStatistics()
        scores = leaf_scores(batch, step.tables)
        statistics.update(scores, batch, *CrossEntropy()(scores, batch))
        return statistics.report(Ranks(0, 1, timeout_s=HANG_S))

    both, alone = reported(sampled + of_a_file), reported(sampled)
    of_ratios = [name for name in alone if name.startswith(("ess", "ratio", "mismatch", "logprob_gap"))]
    assert len(of_ratios) > 8
    assert {name: both[name] for name in of_ratios} == pytest.approx({n: alone[n] for n in of_ratios})
    assert both["trained_tokens"] > alone["trained_tokens"]
    assert not reported(of_a_file).keys() & set(of_ratios)
