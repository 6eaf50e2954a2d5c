"""Workers in this process and in others, each group on a free port."""

import multiprocessing
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from contracts.trainer import OptimizerSpec, TrainerWorker, WorkerSpec

# Neither epsilon nor clipping to hide a wrong scale or to blow up float noise.
OPTIMIZER = OptimizerSpec(lr=1e-2, eps=1e-4, weight_decay=0.1, max_grad_norm=0.5, warmup_steps=2, decay_steps=8)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def started(
    worker: TrainerWorker, model_path: str, rank: int = 0, world_size: int = 1, port: int | None = None
) -> Iterator[TrainerWorker]:
    worker.init_worker(
        WorkerSpec(
            model_path=model_path,
            optimizer=OPTIMIZER,
            rank=rank,
            world_size=world_size,
            master_port=port or free_port(),
            timeout_s=60,
        )
    )
    try:
        yield worker
    finally:
        worker.close()


def run_ranks(world_size: int, job: Callable[..., object], directory: Path, *args: object) -> list:
    """`job(rank, world_size, port, *args)` in a new process per rank; what each returned."""
    context, port = multiprocessing.get_context("spawn"), free_port()
    results = [directory / f"{job.__name__}-{rank}.pt" for rank in range(world_size)]
    processes = [
        context.Process(target=_run_rank, args=(result, job, rank, world_size, port, *args))
        for rank, result in enumerate(results)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * world_size
    return [torch.load(result) for result in results]


def _run_rank(result: Path, job: Callable[..., object], rank: int, world_size: int, port: int, *args) -> None:
    torch.set_num_threads(1)
    torch.save(job(rank, world_size, port, *args), result)
