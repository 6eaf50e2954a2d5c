"""Compares what a run takes of disk, memory and /dev/shm with what this machine has left.

Called by `prepare.py` before a run starts, and by the plan, once the model's shape is known.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from contracts.model_shape import ModelShape
from contracts.support.sizes import describe_bytes
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.host_needs import (
    cpu_parts,
    describe_parts,
    disk_parts,
    footprint,
    shared_memory,
)
from pipelinerl.launcher.checking.prerequisites import (
    SHARED_MEMORY,
    caution_of_shared_memory,
    free_shared_memory,
)
from pipelinerl.launcher.executors.base import executor_class
from pipelinerl.training.checkpoints import Checkpoints


def check_room(config: RunConfig, shape: ModelShape, run_dir: Path) -> None:
    """Prints a warning of each shortage. Raises PlanError if /dev/shm is too small.

    With an executor of several nodes, /dev/shm is that of other machines, and is not looked at.
    """
    for shortage in shortages(config, shape, run_dir):
        print(f"warning: {shortage}")
    if config.device == "cuda" and not executor_class(config).spans_nodes:
        _check_shared_memory(shared_memory(config, shape))


def shortages(config: RunConfig, shape: ModelShape, run_dir: Path) -> Iterator[str]:
    """Yields a line if the disk may be too small, and one if the memory of a machine without a GPU may be."""
    taken = footprint(config, shape)
    if taken is not None:
        yield from _of_disk(run_dir, disk_parts(config, shape, taken))
    if config.device == "cpu" and not executor_class(config).spans_nodes:
        yield from _of_memory(cpu_parts(config, shape))


def _of_disk(run_dir: Path, parts: dict[str, int]) -> Iterator[str]:
    there = next(parent for parent in (run_dir, *run_dir.parents) if parent.exists())
    available = shutil.disk_usage(there).free + Checkpoints(run_dir).size()
    if available < sum(parts.values()):
        yield (
            f"the disk of {run_dir} has {describe_bytes(available)} for what takes {describe_parts(parts)}: "
            "a checkpoint without room is left out, and the export waits; set run_dir to a larger disk, or "
            "lower checkpoint.keep"
        )


def _of_memory(parts: dict[str, int]) -> Iterator[str]:
    available = psutil.virtual_memory().available
    if available < sum(parts.values()):
        yield (
            f"this machine has {describe_bytes(available)} of memory left, and the run takes at least "
            f"{describe_parts(parts)}: end other programs, or lower world.servers"
        )


def _check_shared_memory(needed: int) -> None:
    free = free_shared_memory()
    if free < needed:
        raise PlanError(
            f"{SHARED_MEMORY} has {describe_bytes(free)} left, and weights take {describe_bytes(needed)} of "
            "it (plan=true says whose): start the container with a larger --shm-size, or remount it with a "
            "larger size"
        )
    if why := caution_of_shared_memory():
        print(f"warning: {why}")
