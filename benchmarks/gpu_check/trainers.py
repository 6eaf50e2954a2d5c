"""A trainer worker of one rank in this process, and batches for it to learn from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from contracts.conformance.trainer.sequences import make_sequences, objective
from contracts.optimizer import OptimizerSpec
from contracts.support.ports import ReservedPort
from contracts.trainer import PackedBatch, TrainerWorker, WorkerSpec

OPTIMIZER = OptimizerSpec(lr=1e-3)


@contextmanager
def started(
    worker: TrainerWorker,
    model: str,
    device: str,
    optimizer: OptimizerSpec = OPTIMIZER,
    world_size: int = 1,
) -> Iterator[TrainerWorker]:
    """Yields the worker as rank 0 of its trainer, with the model loaded."""
    with ReservedPort() as port:
        worker.init_worker(
            WorkerSpec(
                model_path=model,
                optimizer=optimizer,
                world_size=world_size,
                master_port=port.number,
                device=device,
            )
        )
        try:
            yield worker
        finally:
            worker.close()


def random_batch(model: str, lengths: Sequence[int], seed: int) -> PackedBatch:
    """Returns random sequences of these lengths, packed."""
    return PackedBatch.pack(make_sequences(model, list(lengths), seed))


def learn(worker: TrainerWorker, batch: PackedBatch) -> None:
    """Makes one optimizer step: forward, backward and step."""
    worker.backward(objective(worker.forward(batch), batch, entropy=False))
    worker.step()
    if worker.device.type == "cuda":
        torch.cuda.synchronize(worker.device)
