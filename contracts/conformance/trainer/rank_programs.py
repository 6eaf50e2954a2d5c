"""Programs that ranks run in several checks, using only the contract."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.sequences import Call, Step, objective
from contracts.trainer import LowRank, PackedBatch, StepReport, TokenScores, WorkerSpec

Tensors = dict[str, torch.Tensor]
Factors = dict[str, LowRank]


@dataclass(frozen=True)
class StepsRecord:
    """The results of a program's steps on one rank.

    `weights` and `factors` have one more element: those before the first step.
    """

    weights: list[Tensors]  # float32 weights on the CPU; empty except on rank 0
    factors: list[Factors]  # of a worker that trains low-rank factors; empty except on rank 0
    reports: list[StepReport]
    losses: list[list[float]]  # [step][micro-batch], losses of this rank


def weight_copies(worker: RecordingWorker) -> Tensors:
    """Returns copies of the full weights on rank 0, and an empty dict on other ranks."""
    return {name: _copy(tensor) for name, tensor in worker.gather_weights() if tensor is not None}


def factor_copies(worker: RecordingWorker, spec: WorkerSpec | None = None) -> Factors:
    """Returns float32 copies of the low-rank factors on rank 0, and an empty dict on other ranks."""
    return {
        name: LowRank(_copy(factors.a), _copy(factors.b), factors.scale)
        for name, factors in worker.gather_low_rank()
        if factors is not None
    }


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", torch.float32, copy=True)


def run_steps(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], directory: Path | None = None
) -> StepsRecord:
    """Makes every step, and returns weights, reports and losses.

    A step that exports or saves writes to `directory`.
    """
    weights = [weight_copies(worker)]
    factors = [factor_copies(worker)]
    reports = []
    losses = []
    for number, step in enumerate(steps):
        if step.reset:
            worker.reset_optimizer()
        losses.append(accumulate(worker, spec, step, number))
        for call in step.before_step:
            _call_between(worker, spec, step, call, directory)
        reports.append(worker.step())
        weights.append(weight_copies(worker))
        factors.append(factor_copies(worker))
    return StepsRecord(weights, factors, reports, losses)


def accumulate(worker: RecordingWorker, spec: WorkerSpec, step: Step, number: int = 0) -> list[float]:
    """Runs forward and backward of this rank's micro-batches, and returns the losses."""
    spoilt = spec.rank == step.spoilt % spec.world_size
    scale = step.scale if math.isfinite(step.scale) or spoilt else 1.0
    losses = []
    waiting: list[torch.Tensor] = []
    for row in step.rows:
        batch = PackedBatch.pack(row[spec.rank], number)
        scores = _forward(worker, step, batch, waiting)
        loss = objective(scores, batch, step.entropy) * scale
        losses.append(loss.item())
        if step.probe:
            _probe(worker, step)
        if step.order == "in turn":
            worker.backward(loss)
        else:
            waiting.append(loss)
    for loss in reversed(waiting) if step.order == "last first" else waiting:
        worker.backward(loss)
    return losses


def _forward(
    worker: RecordingWorker, step: Step, batch: PackedBatch, waiting: list[torch.Tensor]
) -> TokenScores:
    """Returns the scores of `batch`.

    If the backend refuses a forward before the waiting backwards, it runs those first.
    """
    try:
        scores: TokenScores = worker.forward(batch, entropy=step.entropy)
        return scores
    except NotImplementedError:
        if not waiting:
            raise
    while waiting:
        worker.backward(waiting.pop())
    scores = worker.forward(batch, entropy=step.entropy)
    return scores


def _probe(worker: RecordingWorker, step: Step) -> None:
    worker.forward(PackedBatch.pack(step.probe), grad=False, entropy=True)


def _call_between(
    worker: RecordingWorker, spec: WorkerSpec, step: Step, call: Call, directory: Path | None
) -> None:
    if call == "probe":
        worker.forward(PackedBatch.pack(step.rows[0][spec.rank]), grad=False)
    elif call == "gather":
        weight_copies(worker)
    elif directory is not None:
        done = getattr(worker, call)(directory / call)
        if call == "save" and spec.rank == 0:
            done.wait()
