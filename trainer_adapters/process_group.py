"""The trainer's own process group: torch.distributed's default one, its store on one address only."""

from datetime import timedelta

import torch
import torch.distributed as dist

from contracts.trainer import WorkerSpec
from contracts.weights import connected_store, listening_store


def join_process_group(spec: WorkerSpec, backend: str, device: torch.device | None = None) -> None:
    """Rank 0 hosts the store at `master_address`; `device` is the GPU of an NCCL rank."""
    make_store = listening_store if spec.rank == 0 else connected_store
    dist.init_process_group(
        backend,
        store=make_store(spec.master_address, spec.master_port, spec.timeout_s),
        rank=spec.rank,
        world_size=spec.world_size,
        timeout=timedelta(seconds=spec.timeout_s),
        device_id=device,
    )
