"""How much memory one puller takes, by the size of the model. Pages of mapped files do not count."""

import asyncio
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.weight_transports.network import Uplink, network
from extensions.stored_weights.store.puller import Puller, PullProgress, PullRules
from extensions.stored_weights.store.signing import SigningKey
from extensions.stored_weights.store.writer import StoreWriter

RUN = "benchmark"
TENSOR_BYTES = 16 * 2**20
TENSORS = (4, 32)
UPLINK = Uplink(2**40)
LOOK_S = 0.005
CHANGED = 64  # bytes of each tensor that the delta changes
HEAD = "| weights | pulled | grows by at most, MiB (≤ 64) |\n|---|---|---|"


def rows() -> Iterator[str]:
    yield HEAD
    for count in TENSORS:
        for version, what in enumerate(("full files", "a delta")):
            yield f"| {count * TENSOR_BYTES >> 20} MiB | {what} | {growth(count, version) / 2**20:.0f} |"


def growth(tensors: int, version: int) -> int:
    """Returns by how many bytes a process of its own grows while it pulls up to the version."""
    with tempfile.TemporaryDirectory() as folder:
        key = SigningKey.load_or_create(Path(folder) / "key")
        store = Path(folder) / "store"
        manifests = publish(store, key, tensors)
        spawn = multiprocessing.get_context("spawn")
        with network(store, UPLINK, []) as (origin, _), spawn.Pool(1) as pool:
            return pool.apply(
                pulled, (Path(folder) / "server", key.public, origin, manifests, version, tensors)
            )


def publish(store: Path, key: SigningKey, tensors: int) -> list[str]:
    """Publishes two versions, which differ little. Returns the SHA-256 of their manifests."""
    writer = StoreWriter(store, RUN, key, {}, [], deltas=True)
    content = [bytearray(os.urandom(TENSOR_BYTES)) for _ in range(tensors)]
    manifests = []
    for version in range(2):
        named = zip(shapes(tensors).items(), content, strict=True)
        weights = ((name, "bfloat16", shape, data) for (name, shape), data in named)
        manifests.append(writer.publish(writer.write_full_files(version, weights), 1).manifest_sha256)
        for data in content:
            data[:CHANGED] = os.urandom(CHANGED)
    writer.close()
    return manifests


def shapes(tensors: int) -> dict[str, tuple[int, ...]]:
    return {f"model.layers.{index}.weight": (TENSOR_BYTES // 2,) for index in range(tensors)}


def pulled(directory: Path, key, origin: str, manifests: list[str], version: int, tensors: int) -> int:
    """Pulls the versions up to `version`. Returns the growth during the last one, in bytes."""
    return asyncio.run(_pulled(directory, key, origin, manifests, version, tensors))


async def _pulled(directory, key, origin, manifests, version, tensors) -> int:
    puller = Puller(RUN, [key], [origin], directory, shapes(tensors), {}, PullRules())
    for number in range(version):
        await puller.fetch(await puller.manifest(number, manifests[number]), PullProgress())
    with Peak() as peak:
        await puller.fetch(await puller.manifest(version, manifests[version]), PullProgress())
    await puller.close()
    return peak.growth


class Peak:
    """The growth of this process during a block, in bytes."""

    def __enter__(self) -> "Peak":
        self._before = anonymous_bytes()
        self._most = self._before
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self._most - self._before

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._most = max(self._most, anonymous_bytes())
            time.sleep(LOOK_S)


def anonymous_bytes() -> int:
    """Returns this process's memory without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssShmem")))
