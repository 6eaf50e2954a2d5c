"""Trainer workers in this process and in others, and the programs that tests run on them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from contracts.conformance.processes import fork_server
from contracts.conformance.trainer.sequences import objective
from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec, PackedBatch, StepReport, TrainerWorker, WorkerSpec
from tests.limits import HANG_S
from tests.ports import free_port
from tests.trainer_adapters import reference
from tests.trainer_adapters.models import make_sequences
from trainer_adapters.fsdp import FSDPTrainer

LORA = {"rank": 4, "alpha": 8}
LENGTHS = [5, 17, 1, 32, 2, 9, 40, 13]
OPTIMIZER = OptimizerSpec(
    lr=1e-2,
    eps=1e-4,  # large enough that AdamW does not amplify float noise
    weight_decay=0.1,
    max_grad_norm=0.5,  # small enough to clip
    warmup_steps=2,
    decay_steps=8,
)


def backend(name: str) -> TrainerWorker:
    """Returns the trainer of a name such as zero3-bf16-values-lora."""
    base, *options = name.split("-")
    arguments = {
        "compute_dtype": "bfloat16" if "bf16" in options else "float32",
        "value_head": "values" in options,
        "lora": LORA if "lora" in options else None,
    }
    if base == "fsdp":
        return FSDPTrainer(**arguments)
    from trainer_adapters.deepspeed import DeepSpeedTrainer

    return DeepSpeedTrainer(zero_stage=int(base.removeprefix("zero")), **arguments)


def weights_of(worker: TrainerWorker) -> reference.Tensors:
    return {name: t.cpu().clone() for name, t in worker.gather_weights() if t is not None}


@contextmanager
def started(
    worker: TrainerWorker,
    model_path: str,
    rank: int = 0,
    world_size: int = 1,
    port: int | None = None,
    optimizer: OptimizerSpec = OPTIMIZER,
) -> Iterator[TrainerWorker]:
    worker.init_worker(
        WorkerSpec(
            model_path=model_path,
            optimizer=optimizer,
            rank=rank,
            world_size=world_size,
            master_port=port or free_port(),
            timeout_s=HANG_S,
        )
    )
    try:
        yield worker
    finally:
        worker.close()


def pack(sequences: list[TrainingSequence]) -> PackedBatch:
    return PackedBatch.pack(sequences)


def accumulate(worker: TrainerWorker, micro_batches: list[list[TrainingSequence]]) -> None:
    for sequences in micro_batches:
        batch = pack(sequences)
        worker.backward(objective(worker.forward(batch), batch, entropy=False))


def train(worker: TrainerWorker, seeds: range) -> list[StepReport]:
    """Makes one step per seed."""
    reports = []
    for seed in seeds:
        accumulate(worker, [make_sequences(LENGTHS, seed)])
        reports.append(worker.step())
    return reports


def run_ranks(world_size: int, job: Callable[..., object], directory: Path, *args: object) -> list:
    """Runs `job(rank, world_size, *args)` in a new process per rank. Returns the results by rank."""
    context = fork_server()
    results = [directory / f"{job.__name__}-{rank}.pt" for rank in range(world_size)]
    processes = [
        context.Process(target=_run_rank, args=(result, job, rank, world_size, *args))
        for rank, result in enumerate(results)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG_S)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * world_size
    return [torch.load(result) for result in results]


def _run_rank(result: Path, job: Callable[..., object], rank: int, world_size: int, *args: object) -> None:
    torch.set_num_threads(1)
    torch.save(job(rank, world_size, *args), result)
