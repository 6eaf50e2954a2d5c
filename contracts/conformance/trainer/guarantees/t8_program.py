"""The programs that each rank runs in T8: they offload between steps, beside a save, and count bytes."""

import gc
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.conformance.trainer.rank_programs import (
    StepsRecord,
    Tensors,
    accumulate,
    run_steps,
)
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.sequences import Step
from contracts.trainer import WorkerSpec

BEFORE = 2  # steps before the first offload


@dataclass(frozen=True)
class Left:
    """The bytes of tensors on one rank's device."""

    before: int  # before an offload
    after: int  # after it
    least: int  # of float32 weights and two moments, of this rank's share


def continue_offloaded(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], moves: bool
) -> StepsRecord | None:
    """Makes all steps. With `moves`, offloads before the third step once, and before the fourth twice."""
    if not worker.offloads:
        return None
    records = [run_steps(worker, spec, steps[:BEFORE])]
    for times, step in enumerate(steps[BEFORE:], 1):
        for _ in range(times if moves else 0):
            worker.offload()
            worker.onload()
        records.append(run_steps(worker, spec, [step]))
    return StepsRecord(
        weights=[weights for record in records for weights in record.weights],
        factors=[factors for record in records for factors in record.factors],
        reports=[report for record in records for report in record.reports],
        losses=[losses for record in records for losses in record.losses],
    )


def measure(worker: RecordingWorker, spec: WorkerSpec, steps: list[Step]) -> Left | None:
    """Returns the bytes on the device before and after an offload."""
    if not worker.offloads:
        return None
    accumulate(worker, spec, steps[0])
    worker.step()
    before = bytes_on(spec.device)
    worker.offload()
    after = bytes_on(spec.device, reserved=True)
    worker.onload()
    weights = worker.weight_manifest("float32").total_bytes
    return Left(before, after, 3 * weights // spec.world_size)


def bytes_on(device: str, reserved: bool = False) -> int:
    """Returns the bytes of all tensors of this process on its device, those of one storage once.

    reserved: count also what torch keeps of a GPU without a tensor, except the workspaces of cuBLAS.
    """
    gc.collect()
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        return torch.cuda.memory_reserved() if reserved else torch.cuda.memory_allocated()
    sizes = {}
    for found in gc.get_objects():
        # A tensor of another class, such as a DTensor, has its bytes in tensors of these.
        if type(found) not in (torch.Tensor, torch.nn.Parameter) or found.layout != torch.strided:
            continue
        if found.device.type == device:
            storage = found.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def save_and_offload(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], directory: Path
) -> list[Tensors] | None:
    """Offloads while a save is under way. Returns the weights of the save, and those after the next step."""
    if not worker.offloads:
        return None
    run_steps(worker, spec, steps[:1])
    handle = worker.save(directory)
    worker.offload()
    if spec.rank == 0:
        handle.wait()
    worker.onload()
    return run_steps(worker, spec, steps[1:2]).weights


def continue_saved(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], directory: Path
) -> list[Tensors]:
    """Loads the checkpoint. Returns its weights, and those after the next step."""
    worker.load(directory)
    return run_steps(worker, spec, steps[1:2]).weights
