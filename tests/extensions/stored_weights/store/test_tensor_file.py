import json
import os

import numpy as np
import pytest
import safetensors.torch
import torch

from extensions.stored_weights.store.errors import BadDigestError
from extensions.stored_weights.store.manifest import StoredParameter
from extensions.stored_weights.store.tensor_file import TensorFile, check_tensor_file, write_tensor_file
from tests.small_disk import fill

DTYPES = ("float32", "bfloat16", "float16")


def raw(tensor: torch.Tensor) -> np.ndarray:
    """Returns the bytes of a tensor."""
    return (
        tensor.contiguous().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    )


def some_tensors() -> dict[str, torch.Tensor]:
    """Returns tensors of all dtypes, one without elements and one without dimensions."""
    torch.manual_seed(0)
    found = {f"w.{dtype}": torch.randn(3, 5).to(getattr(torch, dtype)) for dtype in DTYPES}
    return found | {"empty": torch.empty(0, 4, dtype=torch.bfloat16), "scalar": torch.tensor(2.5)}


def written(path, tensors: dict[str, torch.Tensor]):
    items = [(n, str(t.dtype).removeprefix("torch."), tuple(t.shape), raw(t)) for n, t in tensors.items()]
    write_tensor_file(path, items)
    return path


def file_of(path, header, data: bytes):
    """Writes a file with this header, which need not be a right one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def described(start: int, end: int, **changes) -> dict:
    return {"dtype": "F32", "shape": [(end - start) // 4], "data_offsets": [start, end]} | changes


def test_safetensors_reads_what_is_written(tmp_path):
    tensors = some_tensors()
    read = safetensors.torch.load_file(written(tmp_path / "a", tensors))
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


@pytest.mark.parametrize("by", ["here", "safetensors"])
def test_a_file_is_read_as_bytes(tmp_path, by):
    tensors = some_tensors()
    path = tmp_path / "a"
    written(path, tensors) if by == "here" else safetensors.torch.save_file(tensors, path)
    with TensorFile.open(path) as file:
        assert file.entries.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert file.entries[name].shape == tuple(tensor.shape)
            assert bytes(file.raw(name)) == bytes(raw(tensor))
        with pytest.raises(ValueError, match="read-only"):
            file.raw("scalar")[:] = 0


def test_an_array_outlives_its_file(tmp_path):
    file = TensorFile.open(written(tmp_path / "a", {"w": torch.ones(4)}))
    array = file.raw("w")
    file.close()
    assert array.view(np.float32).tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="closed"):
        file.raw("w")


def test_elements_are_aligned_whatever_the_order(tmp_path):
    tensors = {"odd": torch.ones(3, dtype=torch.bfloat16), "w": torch.ones(4), "v": torch.ones(2)}
    with TensorFile.open(written(tmp_path / "a", tensors)) as file:
        assert list(file.entries) == ["w", "v", "odd"]
        assert all(file.entries[name].start % 4 == 0 for name in ("w", "v"))


WRONG_ITEMS = {
    "stored twice": [("a", "float32", (1,), bytes(4))] * 2,
    "is int64": [("a", "int64", (1,), bytes(8))],
    "has 3 bytes": [("a", "float32", (1,), bytes(3))],
}


@pytest.mark.parametrize("message", WRONG_ITEMS)
def test_what_cannot_be_stored_is_refused(tmp_path, message):
    with pytest.raises(ValueError, match=message):
        write_tensor_file(tmp_path / "a", WRONG_ITEMS[message])


HEADERS = {
    "gap": {"a": described(0, 4), "b": described(8, 12)},
    "overlap": {"a": described(0, 8), "b": described(4, 12)},
    "behind the end": {"a": described(0, 16)},
    "before the end": {"a": described(0, 8)},
    "not from 0": {"a": described(4, 12)},
    "end before start": {"a": described(0, 12), "b": described(12, 8, shape=[1])},
    "other size": {"a": described(0, 12, shape=[4])},
    "unknown dtype": {"a": described(0, 12, dtype="F8_E4M3")},
    "unhashable dtype": {"a": described(0, 12, dtype=[])},
    "negative shape": {"a": described(0, 12, shape=[-1, -3])},
    "huge shape": {"a": described(0, 12, shape=[2**70])},
    "text for a number": {"a": described(0, 12, shape=["3"])},
    "true for a number": {"a": described(0, 12, shape=[True, 3])},
    "other field": {"a": described(0, 12, more=1)},
    "field missing": {"a": {"dtype": "F32", "shape": [3]}},
    "no object": {"a": 3},
    "a list": [1],
    "a text": "text",
    "no JSON": b"{",
    "no UTF-8": b'{"\xff": 1}',
    "nested": b"[" * 10**5,
    "long number": b'{"a": ' + b"1" * 10**5 + b"}",
    "name twice": b'{"a": {"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
    b'"a": {"dtype":"F32","shape":[3],"data_offsets":[0,12]}}',
}


@pytest.mark.parametrize("fault", HEADERS)
def test_a_malformed_header_is_refused(tmp_path, fault):
    with pytest.raises(BadDigestError):
        TensorFile.open(file_of(tmp_path / "a", HEADERS[fault], bytes(12)))


@pytest.mark.parametrize("kept", [0, 7, 8, 20, -1])
def test_a_cut_file_is_refused(tmp_path, kept):
    whole = written(tmp_path / "a", some_tensors()).read_bytes()
    (tmp_path / "b").write_bytes(whole[:kept])
    with pytest.raises(BadDigestError):
        TensorFile.open(tmp_path / "b")


def test_the_stated_length_of_a_header_is_bounded(tmp_path):
    (tmp_path / "a").write_bytes((2**62).to_bytes(8, "little") + bytes(100))
    with pytest.raises(BadDigestError, match="header of"):
        TensorFile.open(tmp_path / "a")


def test_only_a_regular_file_is_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(written(tmp_path / "a", some_tensors()))
    for name in ("fifo", "directory"):
        with pytest.raises(BadDigestError):
            TensorFile.open(tmp_path / name)
    with pytest.raises(OSError):
        TensorFile.open(tmp_path / "link")


def stored(name: str, dtype: str, shape: tuple[int, ...]) -> StoredParameter:
    return StoredParameter(name=name, dtype=dtype, shape=shape, sha256="0" * 64)


EXPECTED = {"a": stored("a", "float32", (2, 3)), "b": stored("b", "bfloat16", (4,))}
OTHERS = {
    "misses c": EXPECTED | {"c": stored("c", "float32", (1,))},
    "holds b": {"a": EXPECTED["a"]},
    "holds a as float32": EXPECTED | {"a": stored("a", "float32", (3, 2))},
    "holds b as bfloat16": EXPECTED | {"b": stored("b", "float16", (4,))},
}


def test_a_file_is_compared_with_what_a_manifest_says(tmp_path):
    path = written(tmp_path / "a", {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)})
    check_tensor_file(path, EXPECTED)
    for message, other in OTHERS.items():
        with pytest.raises(BadDigestError, match=message):
            check_tensor_file(path, other)


def test_a_full_disk_is_noticed_before_anything_is_written(small_disk):
    fill(small_disk, leaving=2**20)
    tensors = [("a", "float32", (2**18,), memoryview(bytes(2**20))), ("b", "float32", (1,), bytes(4))]
    with pytest.raises(OSError, match="No space"):
        write_tensor_file(small_disk / "a", tensors)
    assert not any((small_disk / "a").read_bytes())
