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

from contracts.conformance.trainer.reference import Reference
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
        self.reference = Reference(path)
        self.model = self.reference.model
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
        scores = self.reference.scores(sequences)
        scores = TokenScores(scores.logprobs, scores.entropy, self.values(sequences))
        LOSSES[step](scores, PackedBatch.pack(sequences)).backward()
        return {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self.trained().items()
        }


def assert_learned(model: str, out: Path, results: list[dict]) -> None:
    plain = Plain(model)
    assert {name: tuple(t.shape) for name, t in plain.trained().items() if name in HEAD} == HEAD
    for step in range(len(LOSSES)):
        weights = stored(out / str(step), "model.")
        assert weights.keys() == plain.trained().keys()
        assert weights["value_head.weight"].any() == (step > 0)
        plain.put(weights)
        for rank, result in enumerate(results):
            for share, values in zip(shares(step, rank, len(results)), result["values"][step], strict=True):
                torch.testing.assert_close(values, plain.values(share).detach(), atol=1e-5, rtol=1e-5)
        reference.assert_close(stored(out / str(step + 1), "optimizer.exp_avg."), plain.gradients(step))


def assert_unseen(out: Path, results: list[dict], model: str) -> None:
    names = list(Reference(model).weights())
    assert load_file(out / "export" / "model.safetensors").keys() == set(names)
    for result in results:
        assert result["manifest"] == result["gathered"] == names


# --- fsdp -------------------------------------------------------------------------------------


def test_two_ranks_learn_it_and_a_checkpoint_goes_on_on_another_number_of_ranks(models, tmp_path):
    """Values and gradients are those of a linear layer, which servers never see."""
    results = run_ranks(2, learn, tmp_path, "fsdp", free_port(), models["llama"], tmp_path)
    assert_learned(models["llama"], tmp_path, results)
    assert_unseen(tmp_path, results, models["llama"])
    go_on(0, 1, "fsdp", free_port(), models["llama"], tmp_path / "1", tmp_path / "one")
    for prefix in ("model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."):
        expected = stored(tmp_path / "2", prefix)
        assert expected["value_head.weight"].any()
        reference.assert_close(stored(tmp_path / "one", prefix), expected, 1e-4)


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
