"""FSDPTrainer keeps the trainer contract from one process to another and over two ranks (T2, T4 to T6)."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.ports import free_port
from tests.trainer_adapters import reference
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.test_fsdp import gradients
from tests.trainer_adapters.workers import LENGTHS, accumulate, pack, run_ranks, started, train
from trainer_adapters.fsdp import FSDPTrainer

# --- T5: resume -------------------------------------------------------------------------------


def resume(rank: int, world_size: int, port: int, model: str, checkpoint: Path) -> tuple:
    with started(FSDPTrainer(), model, rank, world_size, port) as worker:
        worker.load(checkpoint)
        return finish(worker)


def finish(worker: FSDPTrainer) -> tuple:
    """The next two steps of a run, and a random number."""
    reports = [(r.grad_norm, r.learning_rate, r.skipped) for r in train(worker, range(10, 12))]
    return dict(worker.gather_weights()), reports, torch.rand(1)


def test_resumed_in_a_new_process_is_as_if_uninterrupted(models, tmp_path):
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        train(worker, range(3))
        torch.rand(1)  # moves the generator on from its seed
        worker.save(tmp_path / "step").wait()
        worker.save(tmp_path / "step").wait()  # in place of the former
        weights, reports, random = finish(worker)
    assert [path.name for path in tmp_path.iterdir()] == ["step"]
    resumed = run_ranks(1, resume, tmp_path, free_port(), models["qwen2"], tmp_path / "step")[0]
    reference.assert_close(resumed[0], weights, tolerance=0)
    assert resumed[1:] == (reports, random)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may grow beyond some kilobytes; to Python that is an OSError."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_an_interrupted_save_leaves_the_former_checkpoint(models, tmp_path):
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        worker.save(tmp_path / "step").wait()
        whole = {name: tensor.clone() for name, tensor in worker.gather_weights()}
        train(worker, range(1))
        with pytest.raises(OSError, match="could not be written"), full_disk():
            worker.save(tmp_path / "step").wait()
        worker.load(tmp_path / "step")
        reference.assert_close(dict(worker.gather_weights()), whole, tolerance=0)


# --- two ranks: T2, T4, T5, T6 ----------------------------------------------------------------


def two_ranks(
    rank: int, world_size: int, ports: dict[str, int], models: dict[str, str], checkpoint: Path
) -> dict:
    """Rank 1 has less to do, or nothing, or nothing that the head scores."""
    sequences = make_sequences(LENGTHS)
    rows = [[sequences[:2], sequences[2:3]], [sequences[3:5], []], [[], []], [sequences[5:7], sequences[7:]]]
    result = {}
    for family, port in ports.items():
        trainer = FSDPTrainer(activation_checkpointing=True if family == "llama" else "selective")
        with started(trainer, models[family], rank, world_size, port) as worker:
            start = list(worker.gather_weights())
            accumulate(worker, [row[rank] for row in rows])
            result[family] = {"start": start, "gradients": gradients(worker), "norm": worker.step().grad_norm}
            if family == "qwen2":
                loss = worker.forward(pack(sequences if rank == 1 else [])).logprobs.sum()
                worker.backward(loss * float("inf"))
                result["skipped"] = worker.step().skipped
                worker.save(checkpoint).wait()
            accumulate(worker, [sequences if rank == 1 else []])
            worker.step()
            result[family]["end"] = dict(worker.gather_weights())
    return result


@pytest.fixture(scope="module")
def ranks(models, tmp_path_factory) -> tuple[list, Path]:
    directory = tmp_path_factory.mktemp("ranks")
    ports = {family: free_port() for family in ("qwen2", "llama")}
    return run_ranks(2, two_ranks, directory, ports, models, directory / "step"), directory / "step"


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_gradient_is_the_sum_over_ranks_some_of_them_idle(models, ranks, family):
    expected = reference.gradients(reference.load(models[family]), make_sequences(LENGTHS))
    norm = torch.nn.utils.get_total_norm(expected.values()).item()
    for result in ranks[0]:
        reference.assert_close(result[family]["gradients"], expected)
        assert result[family]["norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_rank_0_deals_and_gathers_the_weights(models, ranks, family):
    weights = reference.weights(reference.load(models[family]))
    first, second = (result[family]["start"] for result in ranks[0])
    assert [name for name, _ in first] == [name for name, _ in second] == list(weights)
    assert all(torch.equal(tensor, weights[name]) and tensor.is_contiguous() for name, tensor in first)
    assert all(tensor is None for _, tensor in second)


def test_one_infinite_rank_skips_the_step_of_both(ranks):
    assert [result["skipped"] for result in ranks[0]] == [True, True]


def test_resumed_on_another_number_of_ranks(models, ranks):
    results, checkpoint = ranks
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        worker.load(checkpoint)
        accumulate(worker, [make_sequences(LENGTHS)])
        worker.step()
        reference.assert_close(dict(worker.gather_weights()), results[0]["qwen2"]["end"])
