"""What publishing into a store costs a trainer, and how fast a shared store is beside gloo."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from extensions.stored_weights.store.signing import SigningKey
from extensions.stored_weights.store.writer import StoreWriter

TENSORS = 12
TENSOR_BYTES = 16 * 2**20
HEAD = "| what blocks the trainer | seconds | / plain write |\n|---|---|---|"


def rows(rounds: int) -> Iterator[str]:
    """Yields the lines of the table. Both take turns in each round; the first round is not counted."""
    yield HEAD
    shape = (TENSOR_BYTES // 2,)
    weights = [(f"layer.{i}", "bfloat16", shape, os.urandom(TENSOR_BYTES)) for i in range(TENSORS)]
    plain = []
    stored = []
    with tempfile.TemporaryDirectory() as folder:
        key = SigningKey.load_or_create(Path(folder) / "key")
        writer = StoreWriter(Path(folder) / "store", "benchmark", key, {}, [])
        for version in range(rounds + 1):
            plain.append(seconds_of(lambda: write_plainly(Path(folder) / "plain", weights)))
            stored.append(seconds_of(partial(write_into, writer, version, weights)))
        writer.close()
    ratio = median(one / other for one, other in zip(stored[1:], plain[1:], strict=True))
    yield f"| {TENSORS * TENSOR_BYTES >> 20} MiB written as they are | {median(plain[1:]):.3f} | 1 |"
    yield f"| the files of a version, not yet hashed | {median(stored[1:]):.3f} | {ratio:.2f} (≤ 1.5) |"


def seconds_of(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def write_into(writer: StoreWriter, version: int, weights: list) -> None:
    writer.write_full_files(version, weights).discard()


def write_plainly(path: Path, weights: list) -> None:
    with path.open("wb") as file:
        for *_, data in weights:
            file.write(data)
