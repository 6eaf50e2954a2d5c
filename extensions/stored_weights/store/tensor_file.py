"""Writes and maps safetensors files as raw bytes, without torch, because NumPy has no bfloat16."""

import contextlib
import json
import math
import mmap
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from extensions.stored_weights.store.errors import BadDigestError
from extensions.stored_weights.store.manifest import ITEM_BYTES, StoredParameter

RawBytes = npt.NDArray[np.uint8]
# Name, dtype, shape, and an object with a contiguous buffer of the little-endian bytes.
Tensor = tuple[str, str, tuple[int, ...], Any]

MAX_HEADER_BYTES = 64 * 2**20
ALIGNMENT = 8  # alignment of the data in the file
METADATA = "__metadata__"
FORMAT_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "uint8": "U8"}
DTYPES = {name: dtype for dtype, name in FORMAT_NAMES.items()}
SIZES = {**ITEM_BYTES, "uint8": 1}  # bytes of an element


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file. Its bytes are at [start, end) of the file."""

    name: str
    dtype: str  # torch's name
    shape: tuple[int, ...]
    start: int
    end: int


def write_tensor_file(path: Path, tensors: Sequence[Tensor], sync: bool = True) -> None:
    """Writes a safetensors file. Tensors are sorted by element size, widest first, in a stable order.

    Raises OSError before writing if the disk has no space for the complete file. After an error, `path` may
    be incomplete. `sync`: call fsync at the end.
    """
    ordered = sorted(tensors, key=lambda tensor: -SIZES.get(tensor[1], 0))
    header = encode_header(ordered)
    with path.open("wb") as file:
        allocate(file.fileno(), len(header) + sum(_nbytes(dtype, shape) for _, dtype, shape, _ in ordered))
        file.write(header)
        for name, dtype, shape, data in ordered:
            if memoryview(data).nbytes != _nbytes(dtype, shape):
                raise ValueError(f"{name} has {memoryview(data).nbytes} bytes, not those of {dtype} {shape}")
            file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def allocate(descriptor: int, nbytes: int) -> None:
    """Reserves space for a file, if the system supports it. Raises OSError if the disk is full."""
    if nbytes and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)


def encode_header(tensors: Iterable[tuple[str, str, tuple[int, ...], Any]]) -> bytes:
    """Returns the header of a safetensors file, including its length, for tensors in this order.

    Raises ValueError if a name occurs twice or a dtype is not supported.
    """
    entries: dict[str, Any] = {METADATA: {"format": "pt"}}  # transformers requires it
    end = 0
    for name, dtype, shape, _ in tensors:
        if dtype not in FORMAT_NAMES:
            raise ValueError(f"{name} is {dtype}, but a stored weight is {', '.join(ITEM_BYTES)}")
        if name in entries:
            raise ValueError(f"{name} is stored twice")
        start = end
        end += _nbytes(dtype, shape)
        entries[name] = {"dtype": FORMAT_NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def decode_header(text: bytes) -> list[TensorEntry]:
    """Returns the tensors of a header in the order of their data, with offsets from the end of the header.

    `text` is the header without its eight bytes of length. Raises BadDigestError if it is malformed, if a
    name occurs twice, or if there are gaps or overlaps between the tensors.
    """
    try:
        read = json.loads(text, object_pairs_hook=_without_repetition)
        read.pop(METADATA, None)
        entries = [_entry(name, value) for name, value in read.items()]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise BadDigestError(f"no safetensors header: {error!r}"[:500]) from error
    entries.sort(key=lambda entry: (entry.start, entry.end))
    end = 0
    for entry in entries:
        if entry.start != end or entry.end - entry.start != _nbytes(entry.dtype, entry.shape):
            raise BadDigestError(f"the data of {entry.name} is at {entry.start} to {entry.end}")
        end = entry.end
    return entries


def header_length(beginning: bytes, most: int = MAX_HEADER_BYTES) -> int:
    """Returns the header's length, from the first eight bytes. Raises BadDigestError if it exceeds `most`."""
    length = int.from_bytes(beginning[:8], "little")
    if len(beginning) < 8 or length > most:
        raise BadDigestError(f"no safetensors file: a header of {length} bytes")
    return length


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise ValueError("a name occurs twice")
    return read


def _entry(name: str, value: dict[str, Any]) -> TensorEntry:
    dtype = DTYPES[value["dtype"]]
    shape = tuple(value["shape"])
    start, end = value["data_offsets"]
    if value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name} has other fields")
    if any(type(number) is not int or number < 0 for number in (*shape, start, end)):
        raise ValueError(f"{name} has sizes that are no numbers")
    return TensorEntry(name, dtype, shape, start, end)


def _nbytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * SIZES[dtype]


class TensorFile:
    """A memory-mapped safetensors file with a valid header. It is a context manager."""

    def __init__(self, mapping: mmap.mmap, entries: Mapping[str, TensorEntry]):
        self.entries = entries  # in the order of their data
        self._mapping = mapping
        self._bytes: RawBytes | None = np.frombuffer(mapping, np.uint8)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Maps the file. Raises BadDigestError unless it is a regular, complete safetensors file."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size < 8:
                raise BadDigestError(f"{path.name} is no safetensors file")
            mapping = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        return cls(mapping, _entries(mapping, path.name))

    def raw(self, name: str) -> RawBytes:
        """Returns a read-only array of a tensor's bytes. Raises KeyError for an unknown name."""
        entry = self.entries[name]
        if self._bytes is None:
            raise ValueError("the file is closed")
        return self._bytes[entry.start : entry.end]

    def close(self) -> None:
        """Closes the mapping. Arrays that `raw` has returned stay valid."""
        self._bytes = None
        with contextlib.suppress(BufferError):  # the mapping is freed with the last array
            self._mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _entries(mapping: mmap.mmap, file_name: str) -> dict[str, TensorEntry]:
    """Returns the tensors of a mapped file by name. Raises BadDigestError if its size is wrong."""
    length = header_length(mapping[:8], min(MAX_HEADER_BYTES, len(mapping) - 8))
    begin = 8 + length
    found = decode_header(mapping[8:begin])
    if begin + (found[-1].end if found else 0) != len(mapping):
        raise BadDigestError(f"{file_name} has {len(mapping)} bytes, which its header contradicts")
    moved = (replace(entry, start=entry.start + begin, end=entry.end + begin) for entry in found)
    return {entry.name: entry for entry in moved}


def check_tensor_file(path: Path, expected: Mapping[str, StoredParameter]) -> None:
    """Raises BadDigestError unless the file has exactly these names, with these dtypes and shapes."""
    with TensorFile.open(path) as file:
        if odd := file.entries.keys() ^ expected.keys():
            word = "misses" if min(odd) in expected else "holds"
            raise BadDigestError(f"{path.name} {word} {min(odd)}")
        for name, entry in file.entries.items():
            parameter = expected[name]
            if (entry.dtype, entry.shape) != (parameter.dtype, parameter.shape):
                raise BadDigestError(
                    f"{path.name} holds {name} as {entry.dtype} {list(entry.shape)},"
                    f" not {parameter.dtype} {list(parameter.shape)}"
                )
