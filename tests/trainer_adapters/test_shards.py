"""Shards of the backends beyond what the kit tries: bfloat16, value heads, adapters, the scripted trainer.

What is written to them and adopted is what a checkpoint then has: scores, values and the next step are the
same after loading it.
"""

from pathlib import Path

import pytest
import torch

from contracts.trainer import PackedBatch, TrainerWorker, WorkerSpec
from tests.ports import free_port
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.workers import LENGTHS, OPTIMIZER, backend, run_ranks, started, train, weights_of
from trainer_adapters.scripted import SHAPES, ScriptedTrainer

OTHER_FORMS = ("zero1-bf16", "zero2-values", "zero2-bf16-lora", "zero3-bf16-values")  # of DeepSpeed


def scores(worker: TrainerWorker) -> list[torch.Tensor]:
    found = worker.forward(PackedBatch.pack(make_sequences(LENGTHS, seed=9)), grad=False)
    return [score.cpu() for score in (found.logprobs, found.values) if score is not None]


@torch.no_grad()
def add(worker: TrainerWorker, rank: int) -> int:
    """Adds noise to every element of the rank, and adopts. Returns how many there are."""
    generator = torch.Generator().manual_seed(rank)
    shards = worker.shards()
    for shard in shards:
        assert shard.dtype is torch.float32 and shard.is_contiguous() and not shard.requires_grad
        shard += 0.1 * torch.randn(shard.shape, generator=generator)
    worker.adopt()
    return sum(shard.numel() for shard in shards)


def adopted_and_loaded(rank: int, size: int, name: str, port: int, model: str, directory: Path) -> tuple:
    """Returns scores and the next step's weights after adopting; again after loading; and the elements."""
    results = []
    with started(backend(name), model, rank, size, port) as worker:
        train(worker, range(2))
        before = scores(worker)
        elements = add(worker, rank)
        results = [scores(worker)]
        worker.save(directory).wait()
        train(worker, range(2, 3))
        results.append([*weights_of(worker).values()])
        add(worker, rank)
        worker.load(directory)
        loaded = [scores(worker)]
        train(worker, range(2, 3))
        loaded.append([*weights_of(worker).values()])
    return before, results, loaded, elements


def check(found: list[tuple], trained: int) -> None:
    assert sum(elements for *_, elements in found) == trained
    for before, adopted, loaded, _ in found:
        for old, one, other in zip(before, adopted[0], loaded[0], strict=True):
            assert torch.equal(one, other) and not torch.allclose(old, one, atol=0.05)
        for one, other in zip(adopted[1], loaded[1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def trained_elements(model: str, name: str) -> int:
    """Returns the number of trained elements by a trainer that is not sharded."""
    *_, options = name.partition("-")
    with started(backend("-".join(filter(None, ["fsdp", options.replace("bf16", "")]))), model) as worker:
        return sum(parameter.numel() for _, parameter in worker._trained())


@pytest.mark.parametrize(
    "name",
    [
        "fsdp-bf16-values",
        "fsdp-values-lora",
        pytest.param("zero3-values-lora", marks=pytest.mark.engines),
        *(pytest.param(name, marks=pytest.mark.long) for name in OTHER_FORMS),
    ],
)
def test_what_two_ranks_adopt_is_what_a_checkpoint_has(models, tmp_path, name):
    arguments = (name, free_port(), models["llama"], tmp_path / "checkpoint")
    found = run_ranks(2, adopted_and_loaded, tmp_path, *arguments)
    check(found, trained_elements(models["llama"], name))


# --- the scripted trainer ---------------------------------------------------------------------


def scripted_step(rank: int, size: int, port: int) -> tuple[int, list[torch.Tensor], torch.Tensor]:
    worker = ScriptedTrainer()
    spec = WorkerSpec(model_path="", optimizer=OPTIMIZER, rank=rank, world_size=size, master_port=port)
    worker.init_worker(spec)
    elements = add(worker, rank)
    batch = PackedBatch.pack(make_sequences(LENGTHS, seed=1))
    logprobs = worker.forward(batch, grad=False).logprobs
    gathered = [*weights_of(worker).values()]
    worker.close()
    return elements, gathered, logprobs


def test_every_rank_of_the_scripted_trainer_adopts_the_weights_of_the_first(tmp_path):
    alone = scripted_step(0, 1, free_port())
    first, other = run_ranks(2, scripted_step, tmp_path, free_port())
    assert (first[0], other[0]) == (sum(torch.Size(shape).numel() for shape in SHAPES.values()), 0)
    assert all(map(torch.equal, first[1], alone[1])) and other[1] == []
    assert torch.equal(first[2], alone[2]) and torch.equal(other[2], alone[2])
