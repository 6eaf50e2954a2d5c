"""The programs that each rank runs in T10: periods of steps, and again from a checkpoint."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.conformance.trainer.rank_programs import StepsRecord, run_steps
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.sequences import LENGTHS, Step, make_sequences, round_robin
from contracts.trainer import PackedBatch, WorkerSpec

PERIODS = 2  # complete periods


@dataclass(frozen=True)
class Completed:
    """The results of one rank."""

    steps: StepsRecord
    scores: list[torch.Tensor]  # log-probabilities of its probe, after each step that ends a period


def period_of(worker: RecordingWorker, spec: WorkerSpec) -> object:
    """Returns the worker's period, which may be anything."""
    return worker.period


def steps_of(model: str, ranks: int, period: int) -> list[Step]:
    """Returns the steps: those of the periods, and one more.

    The gradients of two steps are not finite: one inside the first period, and the last of the second. With a
    period of one step there are none. Before each step that ends a period comes a forward, which may leave
    gathered copies of the weights.
    """
    skipped = {(period - 1) // 2, PERIODS * period - 1} if period > 1 else set()
    per_share = len(LENGTHS) // (2 * ranks) or 1
    return [
        Step(
            f"step {number + 1}",
            round_robin(make_sequences(model, LENGTHS, number), ranks, per_share),
            scale=math.inf if number in skipped else 1.0,
            spoilt=0,
            entropy=False,
            before_step=("probe",) if ends_period(number, period) else (),
        )
        for number in range(PERIODS * period + 1)
    ]


def saved_after(period: int) -> int:
    """Returns the number of steps before the checkpoint, which is in the middle of the second period."""
    return period + period // 2


def ends_period(number: int, period: int) -> bool:
    """Returns True if the step with this number, counted from 0, ends a period."""
    return (number + 1) % period == 0


def complete_periods(worker: RecordingWorker, spec: WorkerSpec, period: int, directory: Path) -> Completed:
    """Makes all steps, and saves between two of them."""
    steps = steps_of(spec.model_path, spec.world_size, period)
    saved = saved_after(period)
    before = _run(worker, spec, steps, range(saved), period)
    handle = worker.save(directory)
    if spec.rank == 0:  # waiting is not a collective
        handle.wait()
    after = _run(worker, spec, steps, range(saved, len(steps)), period)
    return Completed(_joined([before.steps, after.steps]), before.scores + after.scores)


def load_in_period(worker: RecordingWorker, spec: WorkerSpec, period: int, directory: Path) -> Completed:
    """Loads the checkpoint, and makes the steps after it."""
    worker.load(directory)
    steps = steps_of(spec.model_path, spec.world_size, period)
    return _run(worker, spec, steps, range(saved_after(period), len(steps)), period)


def _run(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], numbers: range, period: int
) -> Completed:
    records = []
    scores = []
    for number in numbers:
        records.append(run_steps(worker, spec, [steps[number]]))
        if ends_period(number, period):
            batch = PackedBatch.pack(steps[number].rows[0][spec.rank])
            scores.append(worker.forward(batch, grad=False).logprobs.cpu())
    return Completed(_joined(records), scores)


def _joined(records: list[StepsRecord]) -> StepsRecord:
    """Joins consecutive records."""
    return StepsRecord(
        [record.weights[0] for record in records[:1]] + [w for record in records for w in record.weights[1:]],
        [record.factors[0] for record in records[:1]] + [f for record in records for f in record.factors[1:]],
        [report for record in records for report in record.reports],
        [losses for record in records for losses in record.losses],
    )
