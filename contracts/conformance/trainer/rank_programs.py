"""Programs that ranks run in several checks, through the contract alone."""

import math
from dataclasses import dataclass

import torch

from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.sequences import Step, objective
from contracts.trainer import PackedBatch, StepReport, WorkerSpec

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class StepsRecord:
    """The steps of a program, as one rank saw them.

    `weights` has one more element: the weights before the first step.
    """

    weights: list[Tensors]  # float32 weights on the CPU; empty except on rank 0
    reports: list[StepReport]
    losses: list[list[float]]  # [step][micro-batch], losses of this rank


def weight_copies(worker: RecordingWorker) -> Tensors:
    """Returns copies of the full weights on rank 0, and an empty dict on other ranks."""
    return {
        name: tensor.detach().to("cpu", torch.float32, copy=True)
        for name, tensor in worker.gather_weights()
        if tensor is not None
    }


def run_steps(worker: RecordingWorker, spec: WorkerSpec, steps: list[Step]) -> StepsRecord:
    """Makes every step, and returns weights, reports and losses."""
    weights = [weight_copies(worker)]
    reports = []
    losses = []
    for number, step in enumerate(steps):
        if step.reset:
            worker.reset_optimizer()
        losses.append(accumulate(worker, spec, step, number))
        reports.append(worker.step())
        weights.append(weight_copies(worker))
    return StepsRecord(weights, reports, losses)


def accumulate(worker: RecordingWorker, spec: WorkerSpec, step: Step, number: int = 0) -> list[float]:
    """Runs forward and backward of this rank's micro-batches, and returns the losses."""
    last = spec.rank == spec.world_size - 1
    scale = step.scale if math.isfinite(step.scale) or last else 1.0
    losses = []
    for row in step.rows:
        batch = PackedBatch.pack(row[spec.rank], number)
        loss = objective(worker.forward(batch, entropy=True), batch) * scale
        worker.backward(loss)
        losses.append(loss.item())
    return losses
