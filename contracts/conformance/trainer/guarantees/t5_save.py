"""The second half of T5: a save has the state at its call, is not lost, and is not mistaken for another."""

from dataclasses import replace
from pathlib import Path

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.compare import compare
from contracts.conformance.trainer.guarantees.t3_step import SPEC
from contracts.conformance.trainer.models import make_model
from contracts.conformance.trainer.rank_programs import Tensors, accumulate, run_steps, weight_copies
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.sequences import LENGTHS, Step, make_sequences, split_evenly
from contracts.conformance.verdicts import GuaranteeError
from contracts.trainer import WorkerSpec

VOCABULARY = 12_000  # so that a checkpoint takes some time to write
TOLERANCE = 1e-6
AT_ONCE = (
    "1 step; backward, save, save elsewhere, step at once, save there again, wait for the first; "
    "close without waiting for the others"
)
REFUSED = "load a checkpoint of a model with one layer less"
BLOCKED = "one rank: save to a directory that cannot be made, because its parent is a file; wait"


def save_at_once(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], waited: Path, closed: Path
) -> list[Tensors]:
    """Saves to `waited`, makes a step and saves to `closed`. Returns the weights of both saves.

    It also saves to `closed` before the step, and does not wait for either of the saves to `closed`.
    """
    run_steps(worker, spec, steps[:1])
    accumulate(worker, spec, steps[1])
    before = weight_copies(worker)
    handle = worker.save(waited)
    worker.save(closed)
    worker.step()
    worker.save(closed)  # replaces the earlier one, whichever is written first
    if spec.rank == 0:
        handle.wait()
    return [before, weight_copies(worker)]


def load_over(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], waited: Path, closed: Path
) -> list[Tensors]:
    """Loads both checkpoints in a worker that has made other steps.

    Returns the weights of `waited`, those after the next step, and the weights of `closed`.
    """
    run_steps(worker, spec, steps[2:])
    worker.load(waited)
    loaded = run_steps(worker, spec, steps[1:2]).weights
    worker.load(closed)
    return [*loaded, weight_copies(worker)]


def try_to_load(worker: RecordingWorker, spec: WorkerSpec, directory: Path) -> bool:
    """Returns True if `load` raises."""
    try:
        worker.load(directory)
    except Exception:  # the contract does not say which error
        return True
    return False


def try_to_save(worker: RecordingWorker, spec: WorkerSpec, directory: Path) -> bool:
    """Returns True if `save` or its handle's `wait` raises."""
    try:
        worker.save(directory).wait()
    except Exception:  # the contract does not say which error
        return True
    return False


def saves(bench: Bench) -> str:
    """Checks saves right before a step or the worker's end, and saves that must fail."""
    model = make_model(bench.directory / "wide", tied=False, vocabulary=VOCABULARY)
    steps = [
        Step(f"step {seed}", split_evenly(make_sequences(model, LENGTHS, seed), bench.ranks))
        for seed in range(3)
    ]
    root = bench.new_directory()
    waited = root / "waited"
    closed = root / "closed"
    saved = bench.session(save_at_once, model, SPEC, steps, waited, closed, doing=AT_ONCE)[0]
    doing = f"{AT_ONCE}; new processes, 1 other step, load the first, the same step, load the second"
    loaded = bench.session(load_over, model, SPEC, steps, waited, closed, doing=doing)[0]
    right_ones = [saved[0], saved[1], saved[1]]
    pairs = zip(loaded, right_ones, ("loaded", "a step after loading", "saved last"), strict=True)
    for found, right, when in pairs:
        compare(found, right, TOLERANCE, f"weight ({when})", "the weights of the run that saved", doing)
    _check_refusals(bench, waited, root)
    return "saves are whole, and fail aloud"


def _check_refusals(bench: Bench, checkpoint: Path, root: Path) -> None:
    deeper = make_model(bench.directory / "deeper", tied=False, vocabulary=VOCABULARY, layers=3)
    for rank, raised in enumerate(bench.session(try_to_load, deeper, SPEC, checkpoint, doing=REFUSED)):
        if not raised:
            wrong = f"rank {rank} loads a checkpoint that does not fit the model, without an error"
            raise GuaranteeError(wrong, "an error on every rank", REFUSED)
    file = root / "file"
    file.touch()
    one = replace(bench, ranks=1)
    if not one.session(try_to_save, bench.models[0], SPEC, file / "step", doing=BLOCKED)[0]:
        raise GuaranteeError(
            "a checkpoint that could not be written raises nothing", "an error of save or wait", BLOCKED
        )
