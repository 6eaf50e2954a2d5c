"""The delta codec `xor-gap-zstd/1`: the changes between two versions of the same parameters.

A delta is a zstd-compressed safetensors file. For each changed parameter it has either `<name>:gap` and
`<name>:xor`, or `<name>:full`, all as uint8:

    gap [4, n]   bytes of `position - previous position - 1` as uint32, the lowest byte of all of them first
    xor [w, n]   bytes of `old ^ new` of the n changed elements, which are w bytes wide, in the same order
    full [size]  the new bytes, if more than a quarter of the elements changed

Applying the same delta twice restores the old version. So it must be applied to a copy of the base.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt
import zstandard

from extensions.stored_weights.store.errors import BadDigestError
from extensions.stored_weights.store.manifest import ITEM_BYTES, StoredParameter
from extensions.stored_weights.store.tensor_file import (
    RawBytes,
    TensorEntry,
    decode_header,
    encode_header,
    header_length,
)

LEVEL = 3
MAX_WINDOW_BYTES = 8 * 2**20  # maximum zstd window, and thereby the memory that decompression needs
SPARSE_DIVISOR = 4  # gap and xor are used if at most 1 / 4 of the elements changed
MAX_ELEMENTS = 2**32  # positions are uint32
CHUNK = 2**20  # elements that are compared or changed at a time
COPY_BYTES = 2**20
SPOOL_BYTES = 16 * 2**20  # bytes of a delta's tensors in memory; larger deltas are spooled to disk
ENTRY_BYTES = 256  # maximum bytes of a header's entry, besides its name

Positions = npt.NDArray[np.uint32]
Elements = npt.NDArray[np.unsignedinteger]


class Described(Protocol):
    """A parameter's name, dtype and shape."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def encode_delta(pairs: Iterable[tuple[Described, RawBytes, RawBytes]], path: Path) -> list[str]:
    """Writes the delta from the old to the new bytes of each parameter.

    Returns the names of the changed parameters, in the order of the file. Writes no file if none changed.
    """
    tensors: list[tuple[str, tuple[int, ...]]] = []
    names = []
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES, dir=str(path.parent)) as data:
        for parameter, old, new in pairs:
            planes = _encode(old, new, ITEM_BYTES[parameter.dtype])
            names += [parameter.name] if planes else []
            for kind, plane in planes.items():
                tensors.append((f"{parameter.name}:{kind}", plane.shape))
                data.write(np.ascontiguousarray(plane).data)
        if names:
            _compress(encode_header((name, "uint8", shape, None) for name, shape in tensors), data, path)
    return names


def _encode(old: RawBytes, new: RawBytes, width: int) -> dict[str, RawBytes]:
    """Returns the tensors of one parameter by the suffix of their names. Empty if nothing changed."""
    if len(old) != len(new):
        raise ValueError(f"{len(new)} bytes have no delta against {len(old)}")
    found = _changes(old.view(f"<u{width}"), new.view(f"<u{width}"))
    if found is None:
        return {"full": new}
    positions, xor = found
    if not len(positions):
        return {}
    gaps = np.diff(positions, prepend=np.uint32(2**32 - 1)) - np.uint32(1)
    return {"gap": _planes(gaps.astype("<u4")), "xor": _planes(xor)}


def _changes(old: Elements, new: Elements) -> tuple[Positions, Elements] | None:
    """Returns positions and xor of the changed elements, or None if too many changed."""
    if len(old) > MAX_ELEMENTS:
        return None
    positions = [np.empty(0, np.uint32)]
    xors = [old[:0]]
    changed = 0
    for start in range(0, len(old), CHUNK):
        xor = old[start : start + CHUNK] ^ new[start : start + CHUNK]
        here = np.flatnonzero(xor)
        changed += len(here)
        if changed * SPARSE_DIVISOR > len(old):
            return None
        positions.append((here + start).astype(np.uint32))
        xors.append(xor[here])
    return np.concatenate(positions), np.concatenate(xors)


def _planes(elements: Elements) -> RawBytes:
    """Returns the bytes of [n] elements of w bytes as [w, n]."""
    return elements.view(np.uint8).reshape(len(elements), -1).T


def _compress(header: bytes, data: IO[bytes], path: Path) -> None:
    size = len(header) + data.tell()
    data.seek(0)
    with path.open("wb") as file:
        compressor = zstandard.ZstdCompressor(level=LEVEL)
        with compressor.stream_writer(file, size=size, closefd=False) as stream:
            stream.write(header)
            shutil.copyfileobj(data, stream, COPY_BYTES)


def apply_delta(
    path: Path,
    parameters: Mapping[str, StoredParameter],
    names: Sequence[str],
    write: Callable[[str], RawBytes],
) -> None:
    """Changes a copy of the base into the new version, one parameter at a time.

    `names` are those of the manifest, in the order of the file. `write` returns a writable array of a
    parameter's bytes. Raises BadDigestError if the file is malformed, possibly after changing some
    parameters. Needs memory for one parameter, even for a malicious file.
    """
    try:
        with path.open("rb") as file, _decompressor().stream_reader(file) as stream:
            _apply(stream, [parameters[name] for name in names], write)
    except zstandard.ZstdError as error:
        raise BadDigestError(f"{path.name} cannot be decompressed: {error}") from error


def _decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)


def _apply(
    stream: IO[bytes], parameters: Sequence[StoredParameter], write: Callable[[str], RawBytes]
) -> None:
    most = ENTRY_BYTES + sum(2 * (ENTRY_BYTES + 2 * len(parameter.name)) for parameter in parameters)
    length = header_length(_read(stream, 8), most)
    entries = iter(decode_header(_read(stream, length)))
    for parameter in parameters:
        entry = next(entries, None)
        if _is(entry, f"{parameter.name}:full", (parameter.nbytes,)):
            _replace(stream, write(parameter.name))
        else:
            count = _changed_count(parameter, entry, next(entries, None))
            _xor(stream, count, write(parameter.name).view(f"<u{ITEM_BYTES[parameter.dtype]}"))
    if next(entries, None) is not None or stream.read(1):
        raise BadDigestError("the delta holds more than its names")


def _is(entry: TensorEntry | None, name: str, shape: tuple[int, ...]) -> bool:
    return entry is not None and (entry.name, entry.dtype, entry.shape) == (name, "uint8", shape)


def _changed_count(parameter: StoredParameter, gap: TensorEntry | None, xor: TensorEntry | None) -> int:
    """Returns the number of changed elements. Raises BadDigestError unless the tensors are valid."""
    count = gap.shape[-1] if gap is not None and gap.shape else 0
    width = ITEM_BYTES[parameter.dtype]
    fits = 0 < count * SPARSE_DIVISOR <= parameter.nbytes // width
    name = parameter.name
    if not (fits and _is(gap, f"{name}:gap", (4, count)) and _is(xor, f"{name}:xor", (width, count))):
        raise BadDigestError(f"the delta does not hold {name} as it must")
    return count


def _replace(stream: IO[bytes], target: RawBytes) -> None:
    for start in range(0, len(target), COPY_BYTES):
        part = target[start : start + COPY_BYTES]
        part[:] = np.frombuffer(_read(stream, len(part)), np.uint8)


def _xor(stream: IO[bytes], count: int, target: Elements) -> None:
    """Changes `count` elements. Raises BadDigestError if a position is outside the parameter."""
    gaps = np.frombuffer(_read(stream, 4 * count), np.uint8).reshape(4, count)
    xor = np.frombuffer(_read(stream, target.itemsize * count), np.uint8).reshape(target.itemsize, count)
    after = 0  # the position after the last change
    for start in range(0, count, CHUNK):
        steps = _elements(gaps[:, start : start + CHUNK]).astype(np.int64) + 1
        positions = after - 1 + np.cumsum(steps)
        after = int(positions[-1]) + 1
        if after > len(target):
            raise BadDigestError("the delta changes what lies outside a parameter")
        target[positions] ^= _elements(xor[:, start : start + CHUNK])


def _elements(planes: RawBytes) -> Elements:
    """Returns [w, n] bytes as [n] elements of w bytes."""
    width = len(planes)
    found: Elements = np.ascontiguousarray(planes.T).view(f"<u{width}")[:, 0]
    return found


def _read(stream: IO[bytes], count: int) -> bytes:
    """Returns exactly `count` bytes. Raises BadDigestError if the stream ends before."""
    parts = []
    while count:
        part = stream.read(min(count, COPY_BYTES))
        if not part:
            raise BadDigestError("the delta is cut off")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
