"""A value head behind the contract: values, and all gradients, are those of plain transformers and a linear
layer; checkpoints have the head, and what servers see has not.

A worker takes a step with each loss and saves after it. With betas of which the first is 0, AdamW's first
moment is the gradient of the last step: so checkpoints tell weights and gradients of every backend alike.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec, PackedBatch, TokenScores, TrainerWorker
from tests.ports import free_port
from tests.trainer_adapters import reference
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.workers import LENGTHS, backend, pack, run_ranks, started
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.token_scores import ValueHead

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # to read checkpoints alone
ADAMW = OptimizerSpec(lr=1e-2, betas=(0.0, 0.9), eps=1e-4, weight_decay=0.1, max_grad_norm=1e9)
HEAD = {"value_head.weight": (1, 32), "value_head.bias": (1,)}


def actor_critic(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    return policy(scores, batch) + value(scores, batch)


def policy(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    return -((scores.logprobs * batch.advantages + 0.1 * scores.entropy) * batch.loss_weights).sum()


def value(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    return 0.5 * ((scores.values - batch.advantages).square() * batch.loss_weights).sum()


def entropy(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    return (scores.entropy * batch.loss_weights).sum()


LOSSES: list[Callable[[TokenScores, PackedBatch], torch.Tensor]] = [
    actor_critic,  # while the head is 0
    actor_critic,
    policy,
    value,
    entropy,
]


def sequences_of(step: int) -> list[TrainingSequence]:
    return make_sequences(LENGTHS, seed=step)


def shares(step: int, rank: int, size: int) -> list[list[TrainingSequence]]:
    """Micro-batches of one rank, of two unequal ones; one process does those of both."""
    s = sequences_of(step)
    rows = [[s[:5], s[5:6]], [[], s[6:7]], [s[7:], []], [[], []]]
    return [share for row in rows for share in row] if size == 1 else [row[rank] for row in rows]


# --- jobs of a rank ---------------------------------------------------------------------------


def take(worker: TrainerWorker, step: int, rank: int, size: int) -> list[torch.Tensor]:
    """One step; the values of each micro-batch."""
    values = []
    for sequences in shares(step, rank, size):
        batch = pack(sequences)
        scores = worker.forward(batch, entropy=True)
        assert scores.values.requires_grad
        assert not worker.forward(batch, grad=False).values.requires_grad
        worker.backward(LOSSES[step](scores, batch))
        values.append(scores.values.detach().clone())
    worker.step()
    return values


def learn(rank: int, size: int, name: str, port: int, model: str, out: Path) -> dict:
    """Checkpoints 0 (before) to 5; values of each step; names that servers see."""
    with started(backend(f"{name}-values"), model, rank, size, port, ADAMW) as worker:
        worker.save(out / "0").wait()
        values = []
        for step in range(len(LOSSES)):
            values.append(take(worker, step, rank, size))
            worker.save(out / str(step + 1)).wait()
        worker.step()  # without a micro-batch
        manifest = [p.name for p in worker.weight_manifest("bfloat16").parameters]
        gathered = [name for name, _ in worker.gather_weights()]
        worker.export(out / "export")
    return {"values": values, "manifest": manifest, "gathered": gathered}


def go_on(rank: int, size: int, name: str, port: int, model: str, checkpoint: Path, out: Path) -> None:
    with started(backend(f"{name}-values"), model, rank, size, port, ADAMW) as worker:
        worker.load(checkpoint)
        take(worker, int(checkpoint.name), rank, size)
        worker.save(out).wait()


# --- what is right ----------------------------------------------------------------------------


def stored(checkpoint: Path, prefix: str) -> reference.Tensors:
    metadata = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    state = {key: torch.empty(m.size) for key, m in metadata.items() if key.startswith(prefix)}
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return {key.removeprefix(prefix): tensor for key, tensor in state.items()}


class Plain(torch.nn.Module):
    def __init__(self, path: str):
        super().__init__()
        self.model = reference.load(path)
        self.value_head = torch.nn.Linear(self.model.config.hidden_size, 1)

    def trained(self) -> dict[str, torch.nn.Parameter]:
        return {name.removeprefix("model."): p for name, p in self.named_parameters()}

    def put(self, weights: reference.Tensors) -> None:
        with torch.no_grad():
            for name, parameter in self.trained().items():
                parameter.copy_(weights[name])

    def values(self, sequences: list[TrainingSequence]) -> torch.Tensor:
        values = [torch.zeros(0)]
        for sequence in sequences:
            ids = torch.from_numpy(sequence.token_ids).long()[None]
            hidden = self.model(ids, output_hidden_states=True).hidden_states[-1][0, :-1]
            values += [torch.zeros(1), self.value_head(hidden).squeeze(1)]
        return torch.cat(values)

    def gradients(self, step: int) -> reference.Tensors:
        self.zero_grad(set_to_none=False)
        sequences = sequences_of(step)
        scores = reference.scores(self.model, sequences)
        scores = TokenScores(scores.logprobs, scores.entropy, self.values(sequences))
        LOSSES[step](scores, PackedBatch.pack(sequences)).backward()
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.trained().items()
        }


def assert_learned(model: str, out: Path, results: list[dict]) -> None:
    plain, size = Plain(model), len(results)
    assert {name: tuple(t.shape) for name, t in plain.trained().items() if name in HEAD} == HEAD
    for step in range(len(LOSSES)):
        weights = stored(out / str(step), "model.")
        assert weights.keys() == plain.trained().keys()
        assert weights["value_head.weight"].any() == (step > 0)
        plain.put(weights)
        for rank, result in enumerate(results):
            for share, values in zip(shares(step, rank, size), result["values"][step], strict=True):
                torch.testing.assert_close(values, plain.values(share).detach(), atol=1e-5, rtol=1e-5)
        reference.assert_close(stored(out / str(step + 1), "optimizer.exp_avg."), plain.gradients(step))


def assert_unseen(out: Path, results: list[dict], model: str) -> None:
    names = list(reference.weights(reference.load(model)))
    assert load_file(out / "export" / "model.safetensors").keys() == set(names)
    for result in results:
        assert result["manifest"] == result["gathered"] == names


# --- fsdp -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fsdp(models, tmp_path_factory) -> dict[int, tuple[Path, list[dict]]]:
    """By the number of ranks."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    alone = learn(0, 1, "fsdp", free_port(), models["llama"], one)
    return {
        1: (one, [alone]),
        2: (two, run_ranks(2, learn, two, "fsdp", free_port(), models["llama"], two)),
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_values_and_gradients_are_those_of_a_linear_layer_that_servers_never_see(models, fsdp, ranks):
    assert_learned(models["llama"], *fsdp[ranks])
    assert_unseen(*fsdp[ranks], models["llama"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_in_the_checkpoint(models, fsdp, tmp_path, ranks):
    """Of as many ranks or another number, which goes on in this process."""
    out, _ = fsdp[ranks]
    go_on(0, 1, "fsdp", free_port(), models["llama"], out / "1", tmp_path / "2")
    for prefix in ("model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."):
        expected = stored(out / "2", prefix)
        assert expected["value_head.weight"].any()
        reference.assert_close(stored(tmp_path / "2", prefix), expected, 0 if ranks == 1 else 1e-4)


def test_a_checkpoint_without_it_is_refused_in_one_line(models, tmp_path):
    with started(FSDPTrainer(), models["qwen2"]) as worker:
        assert worker.forward(pack(make_sequences(LENGTHS))).values is None
        worker.save(tmp_path / "step").wait()
    says = r"^.*step has no model\.value_head\.bias: it was written with another model, or other options$"
    with (
        started(FSDPTrainer(value_head=True), models["qwen2"]) as worker,
        pytest.raises(ValueError, match=says),
    ):
        worker.load(tmp_path / "step")


def test_it_computes_in_float32():
    head = ValueHead(4).bfloat16()
    assert not head(torch.ones(3, 4)).any()
    torch.nn.init.constant_(head.weight, 1 / 3)
    expected = 1.001 * head.weight.detach().float().sum()
    torch.testing.assert_close(
        head(torch.full((3, 4), 1.001)).detach(), expected.expand(3), atol=1e-6, rtol=0
    )


# --- deepspeed --------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("name", "ranks"), [("zero1", 2), ("zero2", 2), ("zero3", 2), ("zero3", 1)])
def test_deepspeed_learns_it_as_well(models, tmp_path, name, ranks):
    results = run_ranks(ranks, learn, tmp_path, name, free_port(), models["llama"], tmp_path)
    assert_learned(models["llama"], tmp_path, results)
    assert_unseen(tmp_path, results, models["llama"])


@pytest.mark.long
def test_in_bfloat16_its_masters_are_float32(models, tmp_path):
    run_ranks(2, learn, tmp_path, "zero3-bf16", free_port(), models["llama"], tmp_path)
    weight = stored(tmp_path / "2", "model.")["value_head.weight"]
    assert (weight != weight.bfloat16().float()).any()
