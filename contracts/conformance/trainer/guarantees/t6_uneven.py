"""T6: ranks with different amounts of work, or none, all finish the step, with the right gradient.

As in the pipeline, every rank calls `forward` and `backward` for every row, with an empty batch if it has no
sequences. With one rank, none waits for another, but empty batches and empty steps are still tried.
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
    make_long_pack,
    make_sequences,
    split_evenly,
)


def idle_ranks(bench: Bench) -> str:
    """Trains on steps with idle ranks and empty micro-batches, and checks each gradient."""
    model = bench.models[0]
    reference = bench.reference(model)
    steps = _steps(bench, reference)
    spec = readable_optimizer(reference, steps[-1].sequences)
    doing = "one step each: " + "; ".join(describe(step) for step in steps)
    results = bench.session(run_steps, model, spec, steps, doing=doing)
    worst = check_gradients(reference, results, steps, spec)
    within = f"gradients within {worst:.0e} of each tensor's norm"
    if bench.ranks == 1:
        tried = "only one rank was tried, so that none was idle"
        return f"{len(steps)} steps, some with empty micro-batches or none, closed, {within}; {tried}"
    return f"{len(steps)} steps of {bench.ranks} ranks, some or all of them idle, closed, {within}"


PARTS = {"idle-ranks": idle_ranks}


def _steps(bench: Bench, reference: Reference) -> list[Step]:
    model = reference.path
    ranks = bench.ranks
    sequences = make_sequences(model, LENGTHS, seed=6)
    nothing: Rows = [[[] for _ in range(ranks)]]
    one_token = make_sequences(model, [1], seed=7)
    long = make_long_pack(model, bench.options, reference.context, seed=8)
    scale = 1 / len(sequences)  # there are many tokens, and with few steps weights stay small
    return [
        Step(
            "several blocks on rank 0, no more than one on others",
            [[long] + [one_token] * (ranks - 1)],
            scale,
        ),
        Step("all work on rank 0", all_on_rank(sequences, 0, ranks)),
        Step("empty micro-batches on every rank", nothing * 2),
        Step("all work on the last rank", nothing + all_on_rank(sequences[:3], ranks - 1, ranks) + nothing),
        Step("no micro-batch at all", []),
        Step("one sequence of one token", all_on_rank(one_token, ranks - 1, ranks)),
        Step("work for everyone", split_evenly(sequences, ranks)),
    ]
