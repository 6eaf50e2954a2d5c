"""Tensors whose storages are emptied and filled in place: their views, mapped files, a full disk."""

import tempfile

import pytest
import torch

from tests.small_disk import fill, make_room
from tests.trainer_adapters.models import make_sequences
from tests.trainer_adapters.workers import LENGTHS, backend, pack, started
from trainer_adapters import off_device
from trainer_adapters.off_device import OffDevice

CPU = torch.device("cpu")


def test_views_come_back_with_their_tensor():
    flat = torch.arange(10.0)
    halves = flat[:5], flat[5:].view(5, 1)
    off = OffDevice(CPU)
    for _ in range(2):
        off.take([*halves, torch.empty(0), torch.empty(3, device="meta")])
        assert flat.untyped_storage().nbytes() == 0
        off.give_back()
        assert halves[0].tolist() == [0, 1, 2, 3, 4] and halves[1][-1] == 9


def test_a_tensor_of_a_mapped_file_leaves_it(tmp_path):
    torch.save(torch.ones(4), tmp_path / "file")
    mapped = torch.load(tmp_path / "file", mmap=True)
    off = OffDevice(CPU)
    off.take([mapped])
    with pytest.raises(RuntimeError, match="off its device already: call onload first"):
        off.take([mapped])
    off.give_back()
    off.give_back()
    assert mapped.tolist() == [1, 1, 1, 1]


def test_what_could_not_be_filled_can_be_filled_later(monkeypatch):
    tensors = [torch.ones(4), torch.ones(5)]
    off = OffDevice(CPU)
    off.take(tensors)
    with monkeypatch.context() as patch:
        patch.setattr(off_device, "_read", lambda file, left: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            off.give_back()
    assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [0, 0]
    off.give_back()
    assert [tensor.sum() for tensor in tensors] == [4, 5]


def test_a_full_disk_leaves_all_as_it_was(small_disk, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    tensors = [torch.full((1000,), float(i)) for i in range(3)]
    fill(small_disk, leaving=4096)
    off = OffDevice(CPU)
    with pytest.raises(OSError, match="No space left"):
        off.take(tensors)
    assert [tensor.sum() for tensor in tensors] == [0, 1000, 2000]
    make_room(small_disk)
    off.take(tensors)
    off.give_back()
    assert [tensor.sum() for tensor in tensors] == [0, 1000, 2000]


@pytest.mark.parametrize("name", ["fsdp", "zero2"])
def test_a_worker_that_is_offloaded_refuses_all_but_onload(name, models, tmp_path):
    batch = pack(make_sequences(LENGTHS))
    with started(backend(name), models["llama"]) as worker:
        worker.onload()  # nothing is off the device
        worker.backward(worker.forward(batch).logprobs.sum())
        with pytest.raises(RuntimeError, match="a gradient is accumulated"):
            worker.offload()
        worker.step()
        worker.offload()
        for call in (
            worker.offload,
            worker.step,
            worker.reset_optimizer,
            worker.shards,
            worker.adopt,
            lambda: worker.forward(batch),
            lambda: worker.save(tmp_path / "saved"),
            lambda: [*worker.gather_weights()],
        ):
            with pytest.raises(RuntimeError, match="call onload first"):
                call()
        worker.onload()
        assert worker.forward(batch, grad=False).logprobs.isfinite().all()
        worker.offload()
