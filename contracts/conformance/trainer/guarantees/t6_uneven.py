"""T6: ranks with different amounts of work, or none, all finish the step; the gradient stays right.

Rows as the pipeline makes them: every rank calls `forward` and `backward` for every row, and where there is
nothing for it, with an empty batch. With one rank nobody waits for another; empty batches and empty steps
are still tried.
"""

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.gradient_readout import describe, examine, readable
from contracts.conformance.trainer.rank_programs import walk
from contracts.conformance.trainer.reference import Reference
from contracts.conformance.trainer.sequences import LENGTHS, Rows, Step, alone, evenly, make_sequences


def check(bench: Bench) -> str:
    model = bench.models[0]
    reference = Reference(model)
    steps = _steps(model, bench.ranks)
    spec = readable(reference, steps[0].sequences)
    doing = "one step each: " + "; ".join(describe(step) for step in steps)
    results = bench.session(walk, model, spec, steps, doing=doing)
    worst = examine(reference, results, steps, spec)
    within = f"gradients within {worst:.0e} of each tensor's norm"
    if bench.ranks == 1:
        tried = "only one rank was tried, so that none was idle"
        return f"{len(steps)} steps, some with empty micro-batches or none, closed, {within}; {tried}"
    return f"{len(steps)} steps of {bench.ranks} ranks, some or all of them idle, closed, {within}"


def _steps(model: str, ranks: int) -> list[Step]:
    sequences = make_sequences(model, LENGTHS, seed=6)
    nothing: Rows = [[[] for _ in range(ranks)]]
    one_token = make_sequences(model, [1], seed=7)
    return [
        Step("all work on rank 0", alone(sequences, 0, ranks)),
        Step("empty micro-batches on every rank", nothing * 2),
        Step("all work on the last rank", nothing + alone(sequences[:3], ranks - 1, ranks) + nothing),
        Step("no micro-batch at all", []),
        Step("one sequence of one token", alone(one_token, ranks - 1, ranks)),
        Step("work for everyone", evenly(sequences, ranks)),
    ]
