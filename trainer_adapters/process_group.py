"""Creates torch.distributed's default process group, with a store that listens on one address only."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from contracts.trainer import WorkerSpec
from contracts.weights import connected_store, listening_store


def join_on_device(spec: WorkerSpec) -> torch.device:
    """Joins by NCCL if `spec.device` is cuda, else by gloo. Returns this rank's device."""
    device = torch.device("cpu")
    if spec.device == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("the trainer's device is cuda, but torch sees no CUDA device here")
        # Modulo, because the launcher may make only one GPU visible to each process.
        local_rank = int(os.environ.get("LOCAL_RANK", spec.rank))
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        join_process_group(spec, "nccl", device)
    else:
        join_process_group(spec, "gloo")
    return device


def join_process_group(spec: WorkerSpec, backend: str, device: torch.device | None = None) -> None:
    """Joins the default process group, whose store rank 0 hosts. `device` is the GPU of an NCCL rank."""
    make_store = listening_store if spec.rank == 0 else connected_store
    dist.init_process_group(
        backend,
        store=make_store(spec.master_address, spec.master_port, spec.timeout_s),
        rank=spec.rank,
        world_size=spec.world_size,
        timeout=timedelta(seconds=spec.timeout_s),
        device_id=device,
    )
