"""T8: what a worker holds leaves its device and comes back, and training goes on exactly."""

from typing import Any

import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.compare import compare
from contracts.conformance.trainer.guarantees.t3_step import SPEC
from contracts.conformance.trainer.guarantees.t5_resume import TOLERANCE
from contracts.conformance.trainer.guarantees.t8_program import (
    BEFORE,
    Left,
    continue_offloaded,
    continue_saved,
    measure,
    save_and_offload,
)
from contracts.conformance.trainer.models import make_model
from contracts.conformance.trainer.rank_programs import StepsRecord
from contracts.conformance.trainer.sequences import LENGTHS, Step, make_sequences, round_robin
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

STEPS = 4
LAYERS = 24  # so that what a worker holds besides weights and moments does not count
LARGE = 300_000  # vocabulary on a GPU, where torch reserves memory in blocks of many MB
STAYS = 0.05  # share of the bytes that may stay
EXACT = f"{BEFORE} steps, offload, onload, 1 step, twice offload and onload, 1 step"
MEASURED = "1 step, offload"
SAVED = "1 step, save, offload, handle.wait(), onload, 1 step; new processes, load, 1 step"


def exact(bench: Bench) -> str:
    """Compares steps after offloads with those of a worker that never offloaded, bit for bit."""
    steps = _steps(bench)
    whole = _declared(bench.session(continue_offloaded, bench.models[0], SPEC, steps, False, doing=EXACT))
    moved = bench.session(continue_offloaded, bench.models[0], SPEC, steps, True, doing=EXACT)
    try:
        _check_all_equal(whole, moved)
    except GuaranteeError:
        again = bench.session(continue_offloaded, bench.models[0], SPEC, steps, False, doing=EXACT)
        if _are_equal(whole, again):
            raise
        return f"{STEPS} steps with three offloads; two runs without any differ, so they are not compared"
    return f"{STEPS} steps with three offloads are those of a worker that never offloaded, bit for bit"


def memory(bench: Bench) -> str:
    """Measures how much of what a worker holds stays on its device."""
    size = {"vocabulary": LARGE} if bench.device == "cuda" else {"layers": LAYERS}
    model = make_model(bench.directory / "model", tied=False, **size)
    steps = [Step("step", round_robin(make_sequences(model, LENGTHS, 0), bench.ranks, per_share=2))]
    ranks: list[Left] = _declared(bench.session(measure, model, SPEC, steps, doing=MEASURED))
    shares = [left.after / max(1, min(left.before, left.least)) for left in ranks]
    rank = max(range(len(shares)), key=shares.__getitem__)
    measured = f"{shares[rank]:.1%} of {ranks[rank].before} bytes stay"
    if not shares[rank] <= STAYS:
        raise GuaranteeError(f"{measured} on rank {rank}", f"at most {STAYS:.0%}", MEASURED)
    return measured


def saves(bench: Bench) -> str:
    """Offloads while a checkpoint is being written."""
    steps = _steps(bench)
    directory = bench.new_directory() / "step"
    saved = _declared(bench.session(save_and_offload, bench.models[0], SPEC, steps, directory, doing=SAVED))
    loaded = bench.session(continue_saved, bench.models[0], SPEC, steps, directory, doing=SAVED)
    for when, one, other in zip(("loaded", "a step later"), saved[0], loaded[0], strict=True):
        compare(other, one, TOLERANCE, f"weight ({when})", "the weights of the run that saved", SAVED)
    return "a save that was under way is whole"


PARTS = {"exact": exact, "memory": memory, "saves": saves}


def _steps(bench: Bench) -> list[Step]:
    return [
        Step(
            f"step {seed}",
            round_robin(make_sequences(bench.models[0], LENGTHS, seed), bench.ranks, per_share=2),
        )
        for seed in range(STEPS)
    ]


def _declared(results: list[Any]) -> list[Any]:
    """Returns the results of the ranks. Raises NotDeclaredError if the worker does not offload."""
    if results[0] is None:
        raise NotDeclaredError("not offered: offloads is false")
    return results


def _are_equal(whole: list[StepsRecord], others: list[StepsRecord]) -> bool:
    try:
        _check_all_equal(whole, others)
    except GuaranteeError:
        return False
    return True


def _check_all_equal(whole: list[StepsRecord], moved: list[StepsRecord]) -> None:
    for rank, (one, other) in enumerate(zip(whole, moved, strict=True)):
        _check_equal(rank, one, other)


def _check_equal(rank: int, whole: StepsRecord, moved: StepsRecord) -> None:
    for number, (one, other) in enumerate(zip(whole.reports, moved.reports, strict=True), 1):
        for noun, expected, found in (
            ("gradient norm", one.grad_norm, other.grad_norm),
            ("learning rate", one.learning_rate, other.learning_rate),
            ("losses", whole.losses[number - 1], moved.losses[number - 1]),
        ):
            if found != expected:
                wrong = f"step {number} has {noun} {found} on rank {rank}"
                raise GuaranteeError(wrong, f"{expected}, as without offloads", EXACT)
    for number, (weights, others) in enumerate(zip(whole.weights, moved.weights, strict=True)):
        for name, tensor in weights.items():
            if not torch.equal(tensor, others[name]):
                off = float((tensor - others[name]).abs().max())
                wrong = f"{name} is off by {off:.3g} after {number} steps"
                raise GuaranteeError(wrong, "exactly the weights without offloads", EXACT)
