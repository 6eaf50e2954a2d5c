"""Compares what a run takes of disk and of /dev/shm with what this machine has left.

Called by `prepare.py` before a run starts, once the model's shape is known.
"""

import shutil
from pathlib import Path

from contracts.model_shape import ModelShape
from contracts.support.sizes import describe_bytes
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.host_needs import describe_parts, disk_parts, footprint, shared_memory
from pipelinerl.launcher.checking.prerequisites import (
    SHARED_MEMORY,
    caution_of_shared_memory,
    free_shared_memory,
)
from pipelinerl.launcher.executors.base import executor_class
from pipelinerl.training.checkpoints import Checkpoints


def check_room(config: RunConfig, shape: ModelShape, run_dir: Path) -> None:
    """Prints a warning if the disk may be too small. Raises PlanError if /dev/shm is.

    With an executor of several nodes, /dev/shm is that of other machines, and is not looked at.
    """
    _warn_of_disk(config, shape, run_dir)
    if config.device == "cuda" and not executor_class(config).spans_nodes:
        _check_shared_memory(shared_memory(config, shape))


def _warn_of_disk(config: RunConfig, shape: ModelShape, run_dir: Path) -> None:
    taken = footprint(config, shape)
    if taken is None:
        return
    parts = disk_parts(config, shape, taken)
    there = next(parent for parent in (run_dir, *run_dir.parents) if parent.exists())
    available = shutil.disk_usage(there).free + Checkpoints(run_dir).size()
    if available < sum(parts.values()):
        print(
            f"warning: the disk of {run_dir} has {describe_bytes(available)} for what takes "
            f"{describe_parts(parts)}: a checkpoint without room is left out, and the export waits; set "
            "run_dir to a larger disk, or lower checkpoint.keep"
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
