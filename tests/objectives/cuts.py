"""Checks that a step is the same however it is divided into micro-batches and over ranks."""

import random
from collections.abc import Iterator, Mapping

import pytest
import torch

from contracts.records import TrainingSequence
from contracts.token_fields import TokenField
from pipelinerl.normalisations import Normalisation, PerSequence
from pipelinerl.objectives.base import Objective
from pipelinerl.objectives.nesting import needs_whole_rollouts
from pipelinerl.packing import Fifo
from tests.objectives.batches import (
    PARAMETERS,
    Step,
    in_later_epoch,
    packed,
    random_step,
    scores_of_parameters,
    with_token_fields,
)

Cut = list[list[TrainingSequence]]  # the micro-batches of all ranks, whose gradients are summed


def one_rollout_each(step: Step) -> Cut:
    return list(step.rollouts)


def at_random(step: Step, rng: random.Random, ranks: int) -> Cut:
    """Returns rollouts in random order. Every rank has equally many micro-batches, so some are empty."""
    rows = rng.randint(1, 4)
    micro_batches = [[] for _ in range(ranks * rows)]
    for rollout in rng.sample(step.rollouts, k=len(step.rollouts)):
        rng.choice(micro_batches[1:] or micro_batches).extend(rollout)
    return micro_batches


def as_packed(step: Step, tokens: int, ranks: int) -> Cut:
    """Returns the pipeline's packing, with another row in which every rank is empty."""
    packing = Fifo(tokens, ranks)
    rows = [row for rollout in step.rollouts if (row := packing.add_rollout(rollout))]
    rows += [packing.close_step([]), packing.close_step([])]
    return [micro_batch for row in rows for micro_batch in row.micro_batches]


def cuts(step: Step, seed: int, whole_rollouts: bool) -> Iterator[Cut]:
    rng = random.Random(seed)
    yield one_rollout_each(step)
    if not whole_rollouts:
        yield [[sequence] for sequence in step.sequences]
    for ranks in (1, 2, 3):
        yield at_random(step, rng, ranks)
        yield as_packed(step, rng.choice([30, 80, 150]), ranks)


def trained(
    objective: Objective,
    proximal: bool,
    step: Step,
    cut: Cut,
    token_fields: Mapping[str, TokenField] = {},
) -> tuple[float, torch.Tensor, dict[str, torch.Tensor]]:
    """Returns Σ loss, its gradient by the parameters [PARAMETERS], and the token sums."""
    parameters = torch.zeros(PARAMETERS, dtype=torch.float64, requires_grad=True)
    total, totals = 0.0, {}
    for sequences in cut:
        batch = packed(sequences, token_fields)
        if proximal:
            batch = in_later_epoch(batch, step.tables)
        loss, sums = objective(scores_of_parameters(batch, step.tables, parameters), batch)
        loss.backward()
        total += loss.item()
        totals = {name: totals.get(name, 0.0) + value.detach() for name, value in sums.items()}
    return total, parameters.grad, totals


def assert_same_under_every_cut(
    objective: Objective,
    normalisation: Normalisation = PerSequence(),  # noqa: B008
    seed: int = 0,
    proximal: bool = False,
    token_fields: Mapping[str, TokenField] = {},
) -> None:
    """Asserts that loss, gradient and token sums of a random step in float64 are the same under every cut.

    `proximal`: as from its second epoch on. Fields in `token_fields` have random values.
    """
    step = with_token_fields(random_step(seed, normalisation), token_fields, seed)
    loss, gradient, sums = trained(objective, proximal, step, [step.sequences], token_fields)
    assert gradient.abs().max() > 1e-5
    for cut in cuts(step, seed, needs_whole_rollouts(objective)):
        loss_of_cut, gradient_of_cut, sums_of_cut = trained(objective, proximal, step, cut, token_fields)
        hint = f"the loss is {loss:.6f} uncut and {loss_of_cut:.6f} in {len(cut)} micro-batches: is it a sum?"
        assert loss_of_cut == pytest.approx(loss, rel=1e-10), hint
        torch.testing.assert_close(gradient_of_cut, gradient, rtol=1e-10, atol=1e-12)
        assert sums_of_cut.keys() == sums.keys()
        for name, value in sums.items():
            digits = 1e-6 if value.dtype == torch.float32 else 1e-10
            hint = f"the token sum {name} differs in {len(cut)} micro-batches: is it a sum over tokens?"
            assert sums_of_cut[name].item() == pytest.approx(value.item(), rel=digits), hint
