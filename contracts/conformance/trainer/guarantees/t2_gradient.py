"""T2: the gradient is the plain sum over micro-batches and ranks, however the step is divided.

The gradient flows through log-probabilities and entropies, because the kit's objective uses both. No other
call that the contract allows before `step` changes it.
"""

from dataclasses import replace

import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.gradient_readout import check_gradients, describe, readable_optimizer
from contracts.conformance.trainer.groups import make_groups
from contracts.conformance.trainer.models import with_buffers
from contracts.conformance.trainer.rank import Refusal
from contracts.conformance.trainer.rank_programs import Tensors, run_steps
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import (
    LENGTHS,
    Rows,
    Step,
    all_in_one,
    all_on_rank,
    make_long_pack,
    make_sequences,
    round_robin,
    split_evenly,
    without_a_signal,
)
from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec


def cuts(bench: Bench) -> str:
    """Trains on the same sequences, divided in several ways, and checks each gradient."""
    worst = 0.0
    count = 0
    for number, model in enumerate(bench.models):
        sequences = make_sequences(model, LENGTHS, seed=2)
        reference = bench.reference(model)
        spec = readable_optimizer(reference, sequences)
        steps = _cuts(sequences, bench.ranks)
        if number == 0:
            steps += [_long_step(bench, reference, sequences), *_groups(bench, reference, sequences)]
        worst = max(worst, _check_steps(bench, reference, spec, steps))
        count += len(steps)
    worst = max(worst, _check_with_buffers(bench))
    within = f"within {worst:.0e} of each tensor's norm"
    if bench.ranks == 1:
        tried = "only one rank was tried"
        return f"{count} cuts of a step give its sum over micro-batches, {within}; {tried}"
    return f"{count} cuts of a step over {bench.ranks} ranks give its sum, {within}"


def orders(bench: Bench) -> str:
    """Trains with other calls, or calls in another order, and checks each gradient."""
    model = bench.models[0]
    sequences = make_sequences(model, LENGTHS, seed=2)
    reference = bench.reference(model)
    spec = readable_optimizer(reference, sequences)
    steps = _orders(sequences, bench.ranks)
    few = (steps[:4], steps[4:])  # with few steps per session, weights stay small
    worst = max(_check_steps(bench, reference, spec, each) for each in few)
    return f"{len(steps)} orders of calls, within {worst:.0e}"


PARTS = {"cuts": cuts, "orders": orders}


def _check_with_buffers(bench: Bench) -> float:
    """Checks the gradient of a model with buffers, which a trainer may refuse."""
    model = with_buffers(bench.directory / "buffers")
    sequences = make_sequences(model, LENGTHS, seed=2)
    reference = bench.reference(model)
    spec = readable_optimizer(reference, sequences)
    steps = [Step("a model with buffers", split_evenly(sequences, bench.ranks))]
    return _check_steps(bench, reference, spec, steps, may_refuse=True)


def _check_steps(
    bench: Bench, reference: Reference, spec: OptimizerSpec, steps: list[Step], may_refuse: bool = False
) -> float:
    """Checks the gradient of each step, and returns the largest error; 0 if all ranks refuse the model."""
    doing = "one step each: " + "; ".join(describe(step) for step in steps)
    directory = bench.new_directory()
    results = bench.session(
        run_steps, reference.path, spec, steps, directory, doing=doing, may_refuse=may_refuse
    )
    if any(isinstance(result, Refusal) for result in results):  # T1 checks that all ranks do
        return 0.0
    return check_gradients(reference, results, steps, spec)


def _long_step(bench: Bench, reference: Reference, like: list[TrainingSequence]) -> Step:
    """Returns a step with one long pack, whose gradient is about as large as that of the sequences `like`."""
    sequences = make_long_pack(reference.path, bench.options, reference.context, seed=3)
    rows: Rows = [[sequences] + [like[:1]] * (bench.ranks - 1)]
    name = f"a pack of {sum(len(s.token_ids) for s in sequences)} tokens"
    return Step(name, rows, _scale(reference, like, sequences))


def _groups(bench: Bench, reference: Reference, like: list[TrainingSequence]) -> list[Step]:
    """Returns steps of sequences with common prefixes, in one micro-batch or several.

    Their gradients are about as large as that of the sequences `like`.
    """
    sequences = make_groups(reference.path, seed=4)
    scale = _scale(reference, like, sequences)
    return [
        Step("groups in one micro-batch", all_in_one(sequences, bench.ranks), scale),
        Step("groups over several micro-batches", round_robin(sequences, bench.ranks, 3), -scale),
    ]


def _scale(reference: Reference, like: list[TrainingSequence], sequences: list[TrainingSequence]) -> float:
    return _norm(reference.gradients(like)) / _norm(reference.gradients(sequences))


def _norm(gradients: Tensors) -> float:
    return float(torch.nn.utils.get_total_norm(list(gradients.values())))


def _orders(sequences: list[TrainingSequence], ranks: int) -> list[Step]:
    """Returns steps with other calls, or calls in another order, between the first forward and `step`.

    The loss changes its sign from step to step, so that the weights do not grow.
    """
    rows = round_robin(sequences, ranks, 2)
    other = tuple(reversed(sequences))
    steps = [
        Step("every forward before the first backward", rows, order="forwards first"),
        Step("every forward first, the last backward first", rows, order="last first"),
        Step("without entropies", rows, entropy=False),
        Step("forward(grad=False) of other sequences before each backward", rows, probe=other),
        Step("forward(grad=False) between backward and step", rows, before_step=("probe",)),
        Step("gather_weights between backward and step", rows, before_step=("gather",)),
        Step("export and save between backward and step", rows, before_step=("export", "save")),
        Step(
            "gather_weights, and forward(grad=False) before backward and before step",
            rows,
            order="forwards first",
            probe=other,
            before_step=("gather", "probe"),
        ),
    ]
    return [replace(step, scale=(-1.0) ** number) for number, step in enumerate(steps)]


def _cuts(sequences: list[TrainingSequence], ranks: int) -> list[Step]:
    """Returns steps of the same sequences. Their weights differ, because each step changes them."""
    nothing: Rows = [[[]] * ranks]
    return [
        Step("one micro-batch a rank", split_evenly(sequences, ranks)),
        Step(
            "one micro-batch a sequence, some without advantages, some without a token to learn from",
            round_robin(without_a_signal(sequences), ranks),
        ),
        Step(
            "uneven shares",
            round_robin(sequences[:6], ranks, 3) + nothing + round_robin(sequences[6:], ranks),
        ),
        Step("all on the last rank", all_on_rank(sequences, ranks - 1, ranks)),
    ]
