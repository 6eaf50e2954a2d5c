"""The programs that each rank runs in T9: they write to the shards, adopt, gather, score and step."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from contracts.conformance.trainer.guarantees.t1_scores import cpu
from contracts.conformance.trainer.rank_programs import (
    Factors,
    StepsRecord,
    Tensors,
    factor_copies,
    run_steps,
    weight_copies,
)
from contracts.conformance.trainer.recording_worker import RecordingWorker
from contracts.conformance.trainer.sequences import Step
from contracts.records import TrainingSequence
from contracts.trainer import PackedBatch, TokenScores, WorkerSpec

BASE = 2**20  # of the digits of an element's number: smaller numbers are exact in float32
DIGITS = 2
NOISE = 0.1  # of the root mean square of a rank's elements


@dataclass(frozen=True)
class Layout:
    """The shards of one rank, and what was gathered while each of their elements held its own number."""

    sizes: list[list[int]]  # of the shards, in each list that the worker returned
    faults: list[str]  # what is wrong with the tensors themselves
    digits: list[tuple[Tensors, Factors]]  # gathered for each digit of the numbers, the lowest first


@dataclass(frozen=True)
class Exchanged:
    """The results of one rank."""

    layout: Layout
    trained: StepsRecord  # the steps before anything was written
    own: torch.Tensor  # the elements of its shards after these steps, end to end
    restored: tuple[Tensors, Factors]  # gathered when the shards had their elements back
    before: TokenScores  # of the probe, before the shards were moved
    moved: TokenScores  # of the probe, after they were moved and adopted
    following: StepsRecord  # one more step


def number_shards(worker: RecordingWorker, spec: WorkerSpec) -> Layout | None:
    """Writes its number to each element, gathers the weights, and restores the elements.

    Element i of rank r has the number 1 + i * ranks + r. Returns None if the worker has no shards.
    """
    shards = worker.shards()
    if shards is None:
        return None
    own = end_to_end(shards)
    numbers = 1 + torch.arange(len(own)) * spec.world_size + spec.rank
    digits = []
    for digit in range(DIGITS):
        _write(shards, (numbers // BASE**digit % BASE).float())
        worker.adopt()
        digits.append((weight_copies(worker), factor_copies(worker)))
    _write(shards, own)
    worker.adopt()
    return Layout([_sizes(shards)], _faults(shards), digits)


def exchange(
    worker: RecordingWorker, spec: WorkerSpec, steps: list[Step], probe: list[list[TrainingSequence]]
) -> Exchanged | None:
    """Makes all steps but one, writes to the shards, adopts and scores, and makes the last step."""
    first = worker.shards()
    if first is None:
        return None
    sizes = [_sizes(first)]
    trained = run_steps(worker, spec, steps[:-1])
    own = end_to_end(worker.shards())
    layout = number_shards(worker, spec)
    assert layout is not None
    restored = weight_copies(worker), factor_copies(worker)
    batch = PackedBatch.pack(probe[spec.rank])
    shards = worker.shards()
    before = cpu(worker.forward(batch, grad=False))  # may leave gathered copies of the weights
    noise = torch.randn(len(own), generator=torch.Generator().manual_seed(spec.rank))
    _write(shards, own + NOISE * own.square().mean().sqrt() * noise)
    worker.adopt()
    moved = cpu(worker.forward(batch, grad=False))
    following = run_steps(worker, spec, steps[-1:])
    sizes += [*layout.sizes, _sizes(shards), _sizes(worker.shards())]
    layout = Layout(sizes, layout.faults, layout.digits)
    return Exchanged(layout, trained, own, restored, before, moved, following)


def end_to_end(shards: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns a float32 copy of all elements, on the CPU."""
    return torch.cat([torch.zeros(0), *(shard.detach().cpu().float().flatten() for shard in shards)])


@torch.no_grad()
def _write(shards: list[torch.Tensor], values: torch.Tensor) -> None:
    for shard, part in zip(shards, values.split([shard.numel() for shard in shards]), strict=True):
        shard.copy_(part.view(shard.shape))


def _sizes(shards: Iterable[torch.Tensor]) -> list[int]:
    return [shard.numel() for shard in shards]


def _faults(shards: Iterable[torch.Tensor]) -> list[str]:
    faults = []
    for number, shard in enumerate(shards):
        if shard.dtype != torch.float32:
            faults.append(f"shard {number} is {shard.dtype}")
        if not shard.is_contiguous():
            faults.append(f"shard {number} is not contiguous")
        if shard.requires_grad:
            faults.append(f"shard {number} requires a gradient")
    return faults
