"""T2: the gradient is the plain sum over micro-batches and ranks, however the step is cut. It flows through
log-probabilities and entropies: the kit's objective is made of both."""

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.gradient_readout import describe, examine, readable
from contracts.conformance.trainer.rank_programs import walk
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import LENGTHS, Rows, Step, alone, dealt, evenly, make_sequences
from contracts.records import TrainingSequence


def check(bench: Bench) -> str:
    worst = 0.0
    for model in bench.models:
        sequences = make_sequences(model, LENGTHS, seed=2)
        reference = Reference(model)
        spec = readable(reference, sequences)
        steps = _cuts(sequences, bench.ranks)
        doing = "one step each: " + "; ".join(describe(step) for step in steps)
        results = bench.session(walk, model, spec, steps, doing=doing)
        worst = max(worst, examine(reference, results, steps, spec))
    within = f"within {worst:.0e} of each tensor's norm"
    if bench.ranks == 1:
        tried = "only one rank was tried"
        return f"{len(steps)} cuts of a step give its sum over micro-batches, {within}; {tried}"
    return f"{len(steps)} cuts of a step over {bench.ranks} ranks give its sum, {within}"


def _cuts(sequences: list[TrainingSequence], ranks: int) -> list[Step]:
    """The same sequences each time; the weights differ, since each step moves them."""
    nothing: Rows = [[[]] * ranks]
    return [
        Step("one micro-batch a rank", evenly(sequences, ranks)),
        Step("one micro-batch a sequence", dealt(sequences, ranks)),
        Step("uneven shares", dealt(sequences[:6], ranks, 3) + nothing + dealt(sequences[6:], ranks)),
        Step("all on the last rank", alone(sequences, ranks - 1, ranks)),
    ]
