"""How an engine loads stored weights: it keeps no file, applies a whole version, and tries again."""

import mmap
import os

import pytest
import torch
from safetensors.torch import save_file

from contracts.channel import StoredUpdate
from contracts.inference import UpdateProgress
from inference_adapters.resident_memory import resident_bytes, resident_bytes_of_family
from inference_adapters.scripted import EMBED, HEAD, NORM, ScriptedEngine
from inference_adapters.stored_tensors import stored_tensors
from tests.inference_adapters.trainer_peer import weights

MEBIBYTE = 2**20


class AdoptingEngine(ScriptedEngine):
    """Serves the tensors that it is given."""

    def serves_received(self, parameters):
        return True

    def apply_weights(self, tensors, tied, version, kv_cache):
        self._weights = dict(tensors)
        self._version = version


def stored(tmp_path, tensors, version=1) -> StoredUpdate:
    """Returns an update in two files."""
    names = sorted(tensors)
    files = tuple(tmp_path / f"{version}-{index}" for index in range(2))
    for index, path in enumerate(files):
        save_file({name: tensors[name].contiguous() for name in names[index::2]}, path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return StoredUpdate(version, shapes, {HEAD: EMBED}, files, None, "keep")


@pytest.mark.asyncio
@pytest.mark.parametrize("engine", [ScriptedEngine, AdoptingEngine])
async def test_the_files_may_change_afterwards(tmp_path, engine):
    served = engine()
    await served.start(0)
    for version in (1, 2, 3):
        update = stored(tmp_path, weights(version), version)
        progress = UpdateProgress()
        await served.load_weights(update, progress)
        assert progress.touched and progress.paused_s > 0
        for path in update.files:
            path.write_bytes(bytes(path.stat().st_size))
        for name, tensor in weights(version).items():
            assert torch.equal(served._weights[name], tensor), name


@pytest.mark.asyncio
async def test_the_memory_of_replaced_weights_is_used_again(tmp_path):
    served = AdoptingEngine()
    await served.start(0)
    places = []
    for version in (1, 2, 3):
        await served.load_weights(stored(tmp_path, weights(version), version), UpdateProgress())
        places.append(served._weights[EMBED].data_ptr())
    assert places[0] == places[2] != places[1]


@pytest.mark.parametrize("fault", ["missing", "more", "shape"])
def test_files_that_hold_other_parameters_are_refused(tmp_path, fault):
    tensors = weights(1)
    update = stored(tmp_path, tensors)
    shapes = dict(update.shapes)
    if fault == "missing":
        shapes["other"] = (1,)
    elif fault == "more":
        del shapes[NORM]
    else:
        shapes[NORM] = (1, 8)
    with pytest.raises(ValueError, match="do not hold"):
        stored_tensors(1, update.files, shapes)


def test_mapped_files_do_not_count_as_resident(tmp_path):
    size = 64 * MEBIBYTE
    save_file({"a": torch.ones(size // 4)}, tmp_path / "file")
    before = resident_bytes()
    tensors = stored_tensors(1, [tmp_path / "file"], {"a": (size // 4,)})
    assert tensors["a"].sum() == size // 4
    assert resident_bytes() - before < size / 4
    with mmap.mmap(-1, size) as own:
        own.write(bytes(size))
        assert resident_bytes() - before > size / 2
    assert resident_bytes_of_family(os.getpid()) >= resident_bytes() - MEBIBYTE
