"""Every objective against its formula: value, derivatives by all its inputs, and what it reports."""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch

from contracts.records import TrainingSequence
from contracts.trainer import TokenScores
from pipelinerl.normalisations import PerSequence
from pipelinerl.objectives.decoupled_ppo import DecoupledPpo
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


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith(("value_gae", "entropy_selected"))]
)
def test_in_float32_it_is_the_formula_up_to_rounding(name):
    for seed in SEEDS:
        step = random_step(seed, PerSequence())
        loss, gradients = _loss_and_gradients(CASES[name], step, torch.float32)
        expected = CASES[name].oracle(tokens_of(step.sequences, step.tables, CASES[name].later_epoch))
        assert loss.item() == pytest.approx(expected.loss, rel=1e-5, abs=1e-5)  # terms of both signs
        for found, wanted in zip(gradients, expected[1:4], strict=True):
            wanted = torch.tensor(wanted)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def test_the_oracles_own_derivatives_are_those_of_their_values():
    """By central differences; not where a stopped gradient makes the derivative another one."""
    step, h = random_step(0, PerSequence()), 1e-5
    for name, case in CASES.items():
        if case.stops_gradient:
            continue
        tokens = tokens_of(step.sequences, step.tables, case.later_epoch)
        expected = case.oracle(tokens)
        for i in range(0, len(tokens), 10):
            for field, slopes in (("logprob", expected.by_logprob), ("entropy", expected.by_entropy)):
                sides = []
                for change in (h, -h):
                    moved = dataclasses.replace(tokens[i], **{field: getattr(tokens[i], field) + change})
                    sides.append(case.oracle([*tokens[:i], moved, *tokens[i + 1 :]]).loss)
                assert (sides[0] - sides[1]) / (2 * h) == pytest.approx(slopes[i], rel=1e-5, abs=1e-8), name


def test_decoupled_ppo_without_a_clip_is_plain_importance_sampling():
    """(π_prox / μ) (π / π_prox) A = (π / μ) A, whatever π_prox is."""
    step = random_step(1, PerSequence())
    batch = in_later_epoch(packed(step.sequences), step.tables)
    scores = leaf_scores(batch, step.tables)
    loss, _ = DecoupledPpo(1.0, 1e9, 1e9)(scores, batch)
    plain = -(
        (scores.logprobs - batch.behaviour_logprobs).exp() * batch.advantages * batch.loss_weights
    ).sum()
    torch.testing.assert_close(loss, plain, rtol=RELATIVE, atol=0)
    torch.testing.assert_close(
        gradient(loss, scores)[0], gradient(plain, scores)[0], rtol=RELATIVE, atol=1e-14
    )


def test_the_first_epoch_of_decoupled_ppo_leaves_out_what_is_above_the_cap():
    """There π_prox is π, so nothing but the cap bounds the weight π/μ."""
    log_ratios = [0.5, 1.6, 1.7, 8.0]  # 5 is exp(1.609)
    batch = packed(one_sequence(log_ratios, [True] * 4).sequences)
    scores = leaf_scores(batch, one_sequence(log_ratios, [True] * 4).tables)
    loss, sums = DecoupledPpo(0.2, 0.2, 5.0)(scores, batch)
    slopes = gradient(loss, scores)[0]
    assert [bool(slope) for slope in slopes] == [True, True, False, False]
    assert sums["clip_fraction"].item() == 2


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
