"""Persistent buffers, such as routing biases, are part of the model: on every rank, saved and exported."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from extensions.stored_weights.store.checkpoint import copy_checkpoint
from extensions.stored_weights.store_location import StoreLocation
from extensions.stored_weights.trainer.stored import EPOCH, VersionStore
from tests.pipeline.test_weight_publisher import config
from tests.ports import free_port
from tests.trainer_adapters.architectures import tiny_config, tiny_model
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.workers import LENGTHS, backend, pack, run_ranks, started, train, weights_of
from trainer_adapters import hugging_face_trainer
from trainer_adapters.buffers import persistent_buffers

Buffers = dict[str, torch.Tensor]
LONG = ("zero1", "zero2", "zero2-bf16", "zero3-bf16")


def made(path: Path, kind: str = "deepseek_v3") -> Buffers:
    """Writes a tiny model, and returns its buffers, none of which is 0."""
    model = tiny_model(tiny_config(kind))
    model.save_pretrained(path)
    assert all(buffer.all() for buffer in persistent_buffers(model).values())
    return persistent_buffers(model)


def equal(found: Buffers, right: Buffers) -> bool:
    return found.keys() == right.keys() and all(torch.equal(found[name], right[name]) for name in right)


def carry(rank: int, size: int, name: str, port: int, out: Path) -> tuple:
    """Returns the buffers at start, those resumed after they changed, and scores before and after a step."""
    same = pack(make_sequences(LENGTHS, seed=9))
    with started(backend(name), str(out / "model"), rank, size, port) as worker:
        own = persistent_buffers(worker._model)
        loaded = {name: buffer.clone() for name, buffer in own.items()}
        before = worker.forward(same, grad=False).logprobs
        for buffer in own.values():
            buffer *= 1.5  # as an architecture that updates them would
        train(worker, range(1))
        worker.save(out / "saved").wait()
        worker.export(out / "exported")
        after = worker.forward(same, grad=False).logprobs
        for buffer in own.values():
            buffer.zero_()
        worker.load(out / "saved")
        return loaded, worker.buffers(), before.cpu(), after.cpu()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("fsdp", "deepseek_v3", marks=pytest.mark.engines),
        pytest.param("zero3", "deepseek_v3", marks=pytest.mark.engines),
        pytest.param("fsdp-lora", "gemma4_text", marks=pytest.mark.long),
        pytest.param("fsdp-bf16", "glm4_moe", marks=pytest.mark.long),
        pytest.param("zero3-lora", "gemma4_text", marks=pytest.mark.long),
        *(pytest.param(name, "glm4_moe", marks=pytest.mark.long) for name in LONG),
    ],
)
def test_two_ranks_carry_the_buffers_of_the_files(tmp_path, name, kind):
    right = made(tmp_path / "model", kind)
    changed = {key: 1.5 * buffer for key, buffer in right.items()}
    (*_, before, after), (*_, before_1, after_1) = found = run_ranks(
        2, carry, tmp_path, name, free_port(), tmp_path
    )
    assert all(equal(loaded, right) and equal(resumed, changed) for loaded, resumed, *_ in found)
    assert (before - before_1).abs().max() <= 1e-6 and (after - after_1).abs().max() <= 1e-6
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    assert equal(persistent_buffers(exported), changed)


def refused(rank: int, size: int, port: int, model: str) -> str:
    """Returns what a rank says at start if rank 1 keeps the buffers that it has made."""
    hugging_face_trainer.share_buffers = lambda *given: None
    with pytest.raises(ValueError) as refusal, started(backend("fsdp"), model, rank, size, port):
        pass
    return str(refusal.value)


@pytest.mark.engines
def test_ranks_with_other_buffers_are_refused_on_every_rank(tmp_path):
    made(tmp_path / "model")
    one, other = run_ranks(2, refused, tmp_path, free_port(), str(tmp_path / "model"))
    assert one == other and "is not the same model on all ranks" in one and "\n" not in one


def test_a_stored_version_is_the_trained_model(tmp_path):
    made(tmp_path / "model")
    own = config("weights=relay", f"model.path={tmp_path}/model")
    with started(backend("fsdp"), str(tmp_path / "model")) as worker:
        place = StoreLocation(tmp_path, tmp_path / "store")
        store = VersionStore(place, own.model.path, worker.weight_manifest("float32"), worker.buffers)
        train(worker, range(1))
        next(iter(worker.buffers().values()))[1] = 7.0
        store.writer.publish(store.write(1, worker.gather_weights()), EPOCH)
        trained = weights_of(worker) | worker.buffers()
    copy_checkpoint(store.directory, store.run, 1, tmp_path / "copy", None)
    store.close()
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "copy", output_loading_info=True)
    assert not any(report.values()) and equal(loaded.state_dict(), trained)
