"""T5: after saving and loading in new processes, training continues as an uninterrupted run would."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.compare import compare
from contracts.conformance.trainer.guarantees.t3_step import SPEC
from contracts.conformance.trainer.guarantees.t5_save import saves
from contracts.conformance.trainer.rank_programs import StepsRecord, run_steps
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.sequences import LENGTHS, Step, make_sequences, round_robin
from contracts.conformance.verdicts import GuaranteeError
from contracts.trainer import PackedBatch, WorkerSpec

TOLERANCE = 1e-6  # relative: with the same ranks, only the order of sums inside a kernel may differ
SCORES_TOLERANCE = 1e-5  # nats
BEFORE = 3  # steps before the checkpoint, in which the learning rate warms up
SKIPPED = 1  # the step before the checkpoint whose gradient is not finite: it counts in the schedule
AFTER = 2  # steps after it, in which the learning rate decays
DOING = (
    f"{BEFORE - 1} steps, the last one skipped, save; "
    f"1 step, save to the same directory, {AFTER} steps before handle.wait(); "
    f"new processes, load, {AFTER} steps"
)


@dataclass(frozen=True)
class Continued:
    """The results of one rank after the checkpoint."""

    scores: torch.Tensor  # log-probabilities of its first batch, computed before anything else
    steps: StepsRecord


def save_and_continue(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], directory: Path
) -> Continued:
    """Saves twice to the same directory, continues training, and returns the last steps.

    The second save replaces the first, which is one step older. `wait` is called only after weights and
    moments have changed, because the save must contain the state at the time of the call.
    """
    run_steps(worker, spec, steps[: BEFORE - 1])
    worker.save(directory).wait()
    run_steps(worker, spec, steps[BEFORE - 1 : BEFORE])
    handle = worker.save(directory)
    whole = _continue(worker, spec, steps)
    if spec.rank == 0:  # waiting is not a collective
        handle.wait()
    return whole


def load_and_continue(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], directory: Path
) -> Continued:
    """Loads the checkpoint, and returns the steps after it."""
    worker.load(directory)
    return _continue(worker, spec, steps)


def _continue(worker: RecordingWorker, spec: WorkerSpec, steps: list[Step]) -> Continued:
    batch = PackedBatch.pack(steps[BEFORE].rows[0][spec.rank])
    scores = worker.forward(batch, grad=False).logprobs.cpu()
    return Continued(scores, run_steps(worker, spec, steps[BEFORE:]))


def resume(bench: Bench) -> str:
    """Compares the steps after loading with those of an uninterrupted run."""
    model = bench.models[0]
    steps = [
        Step(
            f"step {seed}",
            round_robin(make_sequences(model, LENGTHS, seed), bench.ranks, per_share=2),
            scale=math.inf if seed == SKIPPED else 1.0,
        )
        for seed in range(BEFORE + AFTER)
    ]
    directory = bench.directory / "checkpoints" / "step"
    directory.parent.mkdir()
    whole = bench.session(save_and_continue, model, SPEC, steps, directory, doing=DOING)
    resumed = bench.session(load_and_continue, model, SPEC, steps, directory, doing=DOING)
    worst = 0.0
    for rank, (one, other) in enumerate(zip(whole, resumed, strict=True)):
        worst = max(worst, _check_numbers(rank, one.steps, other.steps))
    for number, pair in enumerate(zip(whole[0].steps.weights, resumed[0].steps.weights, strict=True)):
        when = "loaded" if number == 0 else f"after resumed step {number}"
        noun = f"weight ({when})"
        right = "the uninterrupted run's weights"
        worst = max(worst, compare(pair[1], pair[0], TOLERANCE, noun, right, DOING))
    for rank, (one, other) in enumerate(zip(whole, resumed, strict=True)):
        _check_scores(rank, one.scores, other.scores)
    how = f"within {worst:.0e} of" if worst else "bit for bit those of"
    return f"losses, reports and weights of {AFTER} steps after loading are {how} an uninterrupted run"


PARTS = {"resume": resume, "saves": saves}


def _check_scores(rank: int, whole: torch.Tensor, loaded: torch.Tensor) -> None:
    """Checks that the loaded weights give the same scores as the saved ones, before any step."""
    off = float((whole - loaded).abs().max()) if len(whole) else 0.0
    if not off <= SCORES_TOLERANCE:
        raise GuaranteeError(
            f"after load(), a log-probability of rank {rank} with grad=False is off by {off:.5f}",
            "the scores of the weights that were saved",
            DOING,
        )


def _check_numbers(rank: int, whole: StepsRecord, resumed: StepsRecord) -> float:
    pairs = []
    for number, (one, other) in enumerate(zip(whole.reports, resumed.reports, strict=True), 1):
        if one.skipped != other.skipped:
            raise GuaranteeError(f"resumed step {number} is skipped={other.skipped}", f"{one.skipped}", DOING)
        pairs.append((f"learning rate of resumed step {number}", one.learning_rate, other.learning_rate))
        pairs.append((f"gradient norm of resumed step {number}", one.grad_norm, other.grad_norm))
        losses = zip(whole.losses[number - 1], resumed.losses[number - 1], strict=True)
        pairs += [(f"loss {i} of resumed step {number}", *pair) for i, pair in enumerate(losses)]
    for noun, expected, found in pairs:
        if not math.isclose(found, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-2):
            wrong = f"{noun} is {found:.8g} on rank {rank}"
            raise GuaranteeError(wrong, f"{expected:.8g}, as in the uninterrupted run", DOING)
    return max(abs(found - expected) / (abs(expected) or 1.0) for _, expected, found in pairs)
