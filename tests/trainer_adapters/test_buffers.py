"""Persistent buffers, such as routing biases, are part of the model: on every rank, saved and exported."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from contracts.store.checkpoint import copy_checkpoint
from pipelinerl.training.publishing.stored import EPOCH, StorePlace, VersionStore
from tests.pipeline.test_weight_publisher import config
from tests.ports import free_port
from tests.trainer_adapters.architectures import tiny_config, tiny_model
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.workers import LENGTHS, backend, pack, run_ranks, started, train, weights_of
from trainer_adapters import hugging_face_trainer
from trainer_adapters.buffers import persistent_buffers

KINDS = {"routing biases": "deepseek_v3", "scalars of layers": "gemma4_text", "another router": "glm4_moe"}
Buffers = dict[str, torch.Tensor]


def copies(buffers: Buffers) -> Buffers:
    return {name: buffer.clone() for name, buffer in buffers.items()}


def make(path: Path, kind: str) -> tuple[str, Buffers]:
    """Writes a tiny model, and returns its path and its buffers, none of which is 0."""
    model = tiny_model(tiny_config(KINDS[kind]))
    buffers = persistent_buffers(model)
    assert buffers and all(buffer.all() for buffer in buffers.values())
    model.save_pretrained(path)
    return str(path), copies(buffers)


def carry(rank: int, size: int, name: str, port: int, model: str, out: Path) -> tuple:
    """Returns the buffers at start, those resumed after they changed, and scores before and after a step."""
    same = pack(make_sequences(LENGTHS, seed=9))
    with started(backend(name), model, rank, size, port) as worker:
        loaded = copies(worker.buffers())
        before = worker.forward(same, grad=False).logprobs
        for buffer in persistent_buffers(worker._model).values():
            buffer *= 1.5  # as an architecture that updates them would
        train(worker, range(1))
        worker.save(out / "saved").wait()
        worker.export(out / "exported")
        after = worker.forward(same, grad=False).logprobs
        for buffer in persistent_buffers(worker._model).values():
            buffer.zero_()
        worker.load(out / "saved")
        return loaded, copies(worker.buffers()), before.cpu(), after.cpu()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fsdp", "routing biases"),
        pytest.param("fsdp-lora", "scalars of layers", marks=pytest.mark.engines),
        pytest.param("fsdp-bf16", "another router", marks=pytest.mark.engines),
        pytest.param("zero3", "routing biases", marks=pytest.mark.engines),
        pytest.param("zero3-lora", "scalars of layers", marks=pytest.mark.long),
        *(
            pytest.param(name, "another router", marks=pytest.mark.long)
            for name in ("zero1", "zero2", "zero2-bf16", "zero3-bf16")
        ),
    ],
)
def test_two_ranks_carry_the_buffers_of_the_files(tmp_path, name, kind):
    model, right = make(tmp_path / "model", kind)
    found = run_ranks(2, carry, tmp_path, name, free_port(), model, tmp_path)
    changed = {key: 1.5 * buffer for key, buffer in right.items()}
    for loaded, resumed, *_ in found:
        assert all(torch.equal(loaded[key], buffer) for key, buffer in right.items()), name
        assert all(torch.equal(resumed[key], buffer) for key, buffer in changed.items()), name
    (*_, before, after), (*_, other_before, other_after) = found
    assert (before - other_before).abs().max() <= 1e-6 and (after - other_after).abs().max() <= 1e-6
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    written = persistent_buffers(exported)
    assert all(torch.equal(written[key], buffer) for key, buffer in changed.items())


def refused(rank: int, size: int, port: int, model: str) -> str:
    """Returns what a rank says at start if rank 1 keeps the buffers that it has made."""
    hugging_face_trainer.share_buffers = lambda *given: None
    with pytest.raises(ValueError) as refusal, started(backend("fsdp"), model, rank, size, port):
        pass
    return str(refusal.value)


def test_ranks_with_other_buffers_are_refused_on_every_rank(tmp_path):
    model, _ = make(tmp_path / "model", "routing biases")
    one, other = run_ranks(2, refused, tmp_path, free_port(), model)
    assert one == other and "is not the same model on all ranks" in one and "\n" not in one


def test_a_stored_version_is_the_trained_model(tmp_path):
    model, _ = make(tmp_path / "model", "routing biases")
    place = StorePlace(tmp_path, tmp_path / "store")
    with started(backend("fsdp"), model) as worker:
        own = config("weights=relay", f"model.path={model}")
        store = VersionStore(place, own, worker.weight_manifest("float32"), worker.buffers)
        train(worker, range(1))
        persistent_buffers(worker._model)["model.layers.2.mlp.gate.e_score_correction_bias"][1] = 7.0
        store.writer.publish(store.write(1, worker.gather_weights()), EPOCH)
        copy_checkpoint(store.directory, store.run, 1, tmp_path / "copy", None)
        trained = weights_of(worker) | copies(worker.buffers())
    store.close()
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "copy", output_loading_info=True)
    assert not any(report.values())
    found = loaded.state_dict()
    assert found.keys() == trained.keys() and all(torch.equal(found[key], trained[key]) for key in trained)
