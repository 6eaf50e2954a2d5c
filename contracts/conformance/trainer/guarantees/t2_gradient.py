"""T2: the gradient is the plain sum over micro-batches and ranks, however the step is cut.

The gradient flows through log-probabilities and entropies, because the kit's objective uses both.
"""

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.gradient_readout import check_gradients, describe, readable_optimizer
from contracts.conformance.trainer.rank_programs import run_steps
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import (
    LENGTHS,
    Rows,
    Step,
    all_on_rank,
    make_sequences,
    round_robin,
    split_evenly,
)
from contracts.records import TrainingSequence


def check(bench: Bench) -> str:
    """Trains on the same sequences, cut in several ways, and checks each gradient."""
    worst = 0.0
    for model in bench.models:
        sequences = make_sequences(model, LENGTHS, seed=2)
        reference = Reference(model)
        spec = readable_optimizer(reference, sequences)
        steps = _cuts(sequences, bench.ranks)
        doing = "one step each: " + "; ".join(describe(step) for step in steps)
        results = bench.session(run_steps, model, spec, steps, doing=doing)
        worst = max(worst, check_gradients(reference, results, steps, spec))
    within = f"within {worst:.0e} of each tensor's norm"
    if bench.ranks == 1:
        tried = "only one rank was tried"
        return f"{len(steps)} cuts of a step give its sum over micro-batches, {within}; {tried}"
    return f"{len(steps)} cuts of a step over {bench.ranks} ranks give its sum, {within}"


def _cuts(sequences: list[TrainingSequence], ranks: int) -> list[Step]:
    """Returns steps of the same sequences. Their weights differ, because each step changes them."""
    nothing: Rows = [[[]] * ranks]
    return [
        Step("one micro-batch a rank", split_evenly(sequences, ranks)),
        Step("one micro-batch a sequence", round_robin(sequences, ranks)),
        Step(
            "uneven shares",
            round_robin(sequences[:6], ranks, 3) + nothing + round_robin(sequences[6:], ranks),
        ),
        Step("all on the last rank", all_on_rank(sequences, ranks - 1, ranks)),
    ]
