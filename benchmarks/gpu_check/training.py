"""Throughput, utilisation and peak memory of the FSDP trainer in bfloat16, beside what a plan estimates.

Weights are random; a step is the forward, backward and optimizer step of one pack. The head is computed in
float32, as by default, where its products are TF32, and in bfloat16.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.gpu_check.flops import training_flops, utilisation
from benchmarks.gpu_check.machine import device_name, device_of
from benchmarks.gpu_check.models import HALF_A_BILLION, ONE_AND_A_HALF_BILLION, TINY, free_memory, write_model
from benchmarks.gpu_check.outcomes import FailedError
from benchmarks.gpu_check.trainers import learn, random_batch, started
from contracts.model_shape import ModelShape
from contracts.support.sizes import describe_bytes
from contracts.trainer import PackedBatch, TrainerWorker
from pipelinerl.components import instantiate
from pipelinerl.config import RunConfig
from pipelinerl.launcher.checking.gpu_memory import Use, rank_use
from pipelinerl.launcher.composing.compose import compose_config
from trainer_adapters.activation_checkpointing import Checkpointing

CHECKPOINTING = {True: "with", False: "without", "selective": "with selective"}
LENGTHS = [2048] * 8  # tokens of the packed sequences
DRY_LENGTHS = [64] * 4
WARM_UP = 2  # steps that are not counted
STEPS = 5
MOST_ABOVE_PLAN = 1.1  # times the planned memory that may be allocated


@dataclass(frozen=True)
class Variant:
    """The options of the trainer that are varied."""

    fp32_head: bool
    checkpointing: Checkpointing
    compiled: bool = False

    def __str__(self) -> str:
        head = "float32" if self.fp32_head else "bfloat16"
        layers = ", compiled layers" if self.compiled else ""
        return f"{head} head, {CHECKPOINTING[self.checkpointing]} activation checkpointing{layers}"


def half_a_billion(dry: bool) -> list[str]:
    return _check(
        HALF_A_BILLION,
        [
            Variant(True, False),
            Variant(True, False, compiled=True),
            Variant(False, False),
            Variant(False, "selective"),
            Variant(False, True),
        ],
        dry,
    )


def one_and_a_half_billion(dry: bool) -> list[str]:
    return _check(
        ONE_AND_A_HALF_BILLION,
        [
            Variant(True, True),
            Variant(True, True, compiled=True),
            Variant(True, "selective"),
            Variant(False, True),
            Variant(False, False),
        ],
        dry,
    )


def _check(shape: ModelShape, variants: Sequence[Variant], dry: bool) -> list[str]:
    shape = TINY if dry else shape
    lengths = DRY_LENGTHS if dry else LENGTHS
    lines: list[str] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder), shape, torch.bfloat16, device_of(dry))
        for variant in variants:
            if dry and variant.compiled:  # a processor's compiler is slow, and shows nothing about a GPU's
                continue
            free_memory()  # that of the trainer before
            try:
                lines += [f"{variant}: {line}" for line in _measure(model, shape, variant, lengths, dry)]
            except torch.OutOfMemoryError as error:
                failures.append(f"{variant}: out of memory, {str(error).splitlines()[0]}")
            except FailedError as error:
                failures += [f"{variant}: {line}" for line in error.lines]
    if failures:
        raise FailedError(*lines, *failures)
    return lines


def _measure(model: str, shape: ModelShape, variant: Variant, lengths: Sequence[int], dry: bool) -> list[str]:
    if variant.compiled and not shutil.which("g++"):
        return ["not tried: torch.compile needs a C++ compiler, g++"]
    config = run_config(variant, sum(lengths))
    plan = rank_use(config, shape)
    if not dry and plan.total > (total := torch.cuda.get_device_properties(0).total_memory):
        return [f"not tried: the plan needs {describe_bytes(plan.total)} of {describe_bytes(total)}"]
    batch = random_batch(model, lengths, seed=0)
    with started(instantiate(config.trainer), model, device_of(dry)) as worker:
        seconds = _timed_steps(worker, batch)
        speed = describe_speed(training_flops(shape, lengths), sum(lengths), seconds, device_name())
        return [speed] if dry else [speed, check_memory(plan, speed)]


def run_config(variant: Variant, tokens: int) -> RunConfig:
    """Returns the configuration of a run whose trainer has these options and micro-batches of `tokens`."""
    return compose_config(
        [
            "trainer=fsdp",
            "trainer.compute_dtype=bfloat16",
            f"trainer.fp32_head={variant.fp32_head}",
            f"trainer.activation_checkpointing={variant.checkpointing}",
            f"trainer.compile_layers={variant.compiled}",
            f"packing.micro_batch_tokens={tokens}",
        ]
    )


def _timed_steps(worker: TrainerWorker, batch: PackedBatch) -> list[float]:
    """Returns the seconds of each step. The peak of memory is counted from the first one that is timed."""
    for _ in range(WARM_UP):
        learn(worker, batch)
    if worker.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(worker.device)
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        learn(worker, batch)
        seconds.append(time.perf_counter() - began)
    return seconds


def describe_speed(flops: float, tokens: int, seconds: Sequence[float], device: str) -> str:
    """Returns throughput and utilisation at the median of the steps, with the range of their times."""
    median = statistics.median(seconds)
    share = utilisation(flops, median, device)
    mfu = "MFU unknown: no peak is known for this device" if share is None else f"MFU {share:.1%}"
    return (
        f"{tokens / median:,.0f} tokens/s, {median:.3f} s a step of {tokens:,} tokens "
        f"({min(seconds):.3f} to {max(seconds):.3f}), {flops / median / 1e12:.3g} TFLOP/s, {mfu}"
    )


def check_memory(plan: Use, *measured: str) -> str:
    """Returns what was allocated at most, beside the plan.

    Raises FailedError, with what was `measured` before, if it is far beyond the plan.
    """
    free, total = torch.cuda.mem_get_info()
    allocated = torch.cuda.max_memory_allocated()
    line = describe_memory(plan, allocated, total - free)
    if allocated > MOST_ABOVE_PLAN * planned_tensors(plan):
        raise FailedError(*measured, f"{line}; expected: at most {MOST_ABOVE_PLAN:g} times the plan")
    return line


def planned_tensors(plan: Use) -> int:
    """Returns the planned bytes of tensors: all but those of CUDA's and NCCL's own."""
    return plan.total - plan.parts["CUDA, NCCL, ..."]


def describe_memory(plan: Use, allocated: int, in_use: int) -> str:
    """Returns the peak of what torch allocated, and what all processes use of the GPU, beside the plan."""
    tensors = planned_tensors(plan)
    return (
        f"{describe_bytes(allocated)} allocated at most, {describe_bytes(tensors)} planned "
        f"(ratio {allocated / tensors:.2f}); {describe_bytes(in_use)} of the GPU in use, "
        f"{describe_bytes(plan.total)} planned"
    )
