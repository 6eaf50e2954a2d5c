"""Every objective against its formula: value, derivatives by all its inputs, and what it reports."""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch

from contracts.records import TrainingSequence
from contracts.trainer import TokenScores
from pipelinerl.objectives.icepop import IcePop
from pipelinerl.objectives.kl import KlToReference
from tests.objectives import oracles
from tests.objectives.batches import (
    NORMALISATIONS,
    Step,
    Tables,
    in_later_epoch,
    leaf_scores,
    packed,
    random_step,
)
from tests.objectives.cases import CASES, Case, tokens_of

SEEDS = range(6)
RELATIVE = 1e-10


def gradient(loss: torch.Tensor, scores: TokenScores) -> list[torch.Tensor]:
    """By log-probability, entropy and value."""
    leaves = [scores.logprobs, scores.entropy, scores.values]
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


def assert_as_the_oracle_says(case: Case, step: Step, seed: int) -> dict[str, float]:
    sequences = random.Random(seed).sample(step.sequences, k=len(step.sequences))
    batch = packed(sequences)
    if case.later_epoch:
        batch = in_later_epoch(batch, step.tables)
    scores = leaf_scores(batch, step.tables)
    loss, sums = case.objective(scores, batch)
    tokens = tokens_of(sequences, step.tables, case.later_epoch)
    expected = case.oracle(tokens)
    assert loss.item() == pytest.approx(expected.loss, rel=RELATIVE)
    for found, wanted in zip(gradient(loss, scores), expected[1:4], strict=True):
        torch.testing.assert_close(
            found, torch.tensor(wanted, dtype=torch.float64), rtol=RELATIVE, atol=1e-14
        )
    assert {name: value.item() for name, value in sums.items()} == pytest.approx(expected.sums, rel=RELATIVE)
    assert not any(value.requires_grad for value in sums.values())
    if "clip_fraction" in expected.sums:
        return {"clipped": expected.sums["clip_fraction"], "tokens": sum(t.in_loss for t in tokens)}
    return {}


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("name", CASES)
def test_value_gradient_and_sums_follow_the_formula(name, normalisation):
    counts = [
        assert_as_the_oracle_says(CASES[name], random_step(seed, NORMALISATIONS[normalisation]), seed)
        for seed in SEEDS
    ]
    if any(counts) and CASES[name].clips:
        clipped, tokens = (sum(count[key] for count in counts) for key in ("clipped", "tokens"))
        assert 0.02 < clipped / tokens < 0.98  # bounds bind for some and not for others


def one_sequence(
    log_ratios: list[float],
    masks: list[bool],
    references: list[float] | None = None,
    proximals: list[float] | None = None,
) -> Step:
    """A rollout of one sequence: μ = 1 for each token, so log π is the log ratio. A is 1, −1, 1, −1."""
    n = len(log_ratios)
    sequence = TrainingSequence(
        rollout_id="0-0",
        group_id=0,
        temperature=1.0,
        loss_weight=1 / n,
        token_ids=np.arange(n, dtype=np.int32),
        loss_mask=np.array(masks),
        behaviour_logprobs=np.zeros(n, dtype=np.float32),
        versions=np.zeros(n, dtype=np.int32),
        advantages=np.array([(-1.0) ** i for i in range(n)], dtype=np.float32),
        reference_logprobs=np.array(references or [0.0] * n, dtype=np.float32),
    )
    logprobs = torch.tensor(log_ratios, dtype=torch.float64)
    columns = {name: torch.ones(n, dtype=torch.float64) for name in ("entropy", "values", "start_values")}
    proximal = torch.tensor(proximals or [0.0] * n, dtype=torch.float64)
    slopes = torch.zeros(3, n, 4, dtype=torch.float64)
    return Step([[sequence]], Tables(logprobs=logprobs, proximal=proximal, **columns, slopes=slopes))


def test_the_bounds_of_icepop_are_inside():
    step = one_sequence(
        [math.log(0.5), math.log(5.0), math.log(0.5) - 1e-9, math.log(5.0) + 1e-9], [True] * 4
    )
    batch = packed(step.sequences)
    scores = leaf_scores(batch, step.tables)
    loss, sums = IcePop(0.5, 5.0)(scores, batch)
    assert sums["clip_fraction"] == 2
    assert loss.item() == pytest.approx(-(0.5 - 5.0) / 4, rel=RELATIVE)
    assert gradient(loss, scores)[0][2:].tolist() == [0.0, 0.0]


def test_the_kl_penalty_is_constant_where_the_reference_is_far_above():
    step = one_sequence([-30.0, -15.0, -2.0], [True] * 3, references=[-1.0, -1.0, -300.0])
    case = Case(KlToReference(0.5, "k3", unbiased=False), oracles.kl_to_reference(0.5))
    assert_as_the_oracle_says(case, step, seed=0)


OVERFLOWING = [1000.0, -1000.0]
DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log_ratio", OVERFLOWING)
@pytest.mark.parametrize("name", CASES)
def test_a_ratio_that_overflows_outside_the_loss_leaves_no_trace(name, log_ratio, dtype):
    step = one_sequence(
        [0.1, 2 * log_ratio, -0.2, 2 * log_ratio],
        [True, False, True, False],
        references=[0.0, 900.0, 0.0, -900.0],
        proximals=[0.2, log_ratio, -0.1, log_ratio],
    )
    loss, gradients = _loss_and_gradients(CASES[name], step, dtype)
    tokens = tokens_of(step.sequences, step.tables, CASES[name].later_epoch)
    assert loss.item() == pytest.approx(CASES[name].oracle(tokens).loss, rel=1e-5)
    for by_token in gradients:
        assert by_token.isfinite().all() and by_token[[1, 3]].eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log_ratio", OVERFLOWING)
@pytest.mark.parametrize("name", ["reinforce", "cispo", "cispo_low", "icepop", "decoupled_ppo_first_epoch"])
def test_a_ratio_that_overflows_in_the_loss_is_bounded(name, log_ratio, dtype):
    step = one_sequence([0.1, log_ratio, log_ratio, -0.2], [True] * 4)
    loss, gradients = _loss_and_gradients(CASES[name], step, dtype)
    assert loss.isfinite()
    for by_token in gradients:
        assert by_token.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name, sign, bound",
    [
        ("ppo_clip", 1, 1.28),
        ("two_sided_clip", 1, 1.3),
        ("two_sided_clip", -1, 4.0),
        ("gspo", 1, 1.15),
        ("decoupled_ppo", 1, 1.25),
    ],
)
def test_a_ratio_that_overflows_is_cut_off_by_the_clip(name, sign, bound, dtype):
    step = one_sequence([1000.0, 1000.0], [sign > 0, sign < 0])
    loss, gradients = _loss_and_gradients(CASES[name], step, dtype)
    assert loss.item() == pytest.approx(-sign * bound / 2)
    assert gradients[0].tolist() == [0.0, 0.0]


def _loss_and_gradients(
    case: Case, step: Step, dtype: torch.dtype
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    batch = packed(step.sequences)
    if case.later_epoch:
        batch = in_later_epoch(batch, step.tables)
    scores = leaf_scores(batch, step.tables)
    batch, scores = _as_dtype(batch, dtype), _as_dtype(scores, dtype)
    loss, _ = case.objective(scores, batch)
    return loss, gradient(loss, scores)


def _as_dtype(record, dtype: torch.dtype):
    changes = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            changes[field.name] = value.detach().to(dtype).requires_grad_(value.requires_grad)
    return dataclasses.replace(record, **changes)
