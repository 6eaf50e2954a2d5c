"""What ranks do in several checks, through the contract alone."""

import math
from dataclasses import dataclass

import torch

from contracts.conformance.trainer.recording_worker import Watched
from contracts.conformance.trainer.sequences import Step, objective, packed
from contracts.trainer import StepReport, WorkerSpec

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Walk:
    """Steps as one rank saw them. `weights` has one more: those before the first step."""

    weights: list[Tensors]  # float32 on the CPU; empty on other ranks than 0
    reports: list[StepReport]
    losses: list[list[float]]  # [step][micro-batch]


def gathered(worker: Watched) -> Tensors:
    """Copies of the full weights on rank 0; empty elsewhere."""
    return {
        name: tensor.detach().to("cpu", torch.float32, copy=True)
        for name, tensor in worker.gather_weights()
        if tensor is not None
    }


def walk(worker: Watched, spec: WorkerSpec, steps: list[Step]) -> Walk:
    weights, reports, losses = [gathered(worker)], [], []
    for number, step in enumerate(steps):
        if step.reset:
            worker.reset_optimizer()
        losses.append(accumulate(worker, spec, step, number))
        reports.append(worker.step())
        weights.append(gathered(worker))
    return Walk(weights, reports, losses)


def accumulate(worker: Watched, spec: WorkerSpec, step: Step, number: int = 0) -> list[float]:
    """Forward and backward of this rank's micro-batches; the losses."""
    last = spec.rank == spec.world_size - 1
    scale = step.scale if math.isfinite(step.scale) or last else 1.0
    losses = []
    for row in step.rows:
        batch = packed(row[spec.rank], number)
        loss = objective(worker.forward(batch, entropy=True), batch) * scale
        worker.backward(loss)
        losses.append(loss.item())
    return losses
