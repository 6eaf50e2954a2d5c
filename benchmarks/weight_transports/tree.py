"""How long it takes until all of many servers have a version: from the origin alone, and through relays."""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.weight_transports.network import Uplink, network
from extensions.stored_weights.store.puller import Puller, PullProgress, PullRules
from extensions.stored_weights.store.signing import SigningKey
from extensions.stored_weights.store.writer import StoreWriter

RUN = "benchmark"
PULLERS = 8
RELAYS = 4
RATE = 8 * 2**20  # bytes per second of every uplink
FILES = 16
FILE_BYTES = 2**20  # so a version has 16 MiB
ELEMENTS = FILE_BYTES // 4
SHAPES = {f"model.layers.{index}.weight": (ELEMENTS,) for index in range(FILES)}
HALF = FILES * FILE_BYTES * PULLERS / RELAYS / 2  # what a relay has sent half-way, if all send the same
SLOWER = 10
RULES = PullRules(poll_s=0.2, idle_timeout_s=5.0, min_bytes_per_s=65536)
HEAD = "| sources | until all have it, s | / direct | bar | refetched |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Case:
    """A network. bar: the largest share of the time that the origin alone takes."""

    name: str
    relays: list[Uplink] = field(default_factory=list)
    bar: float | None = None


USUAL = Uplink(RATE)
CASES = (
    Case("the origin alone"),
    Case("4 relays", [USUAL] * RELAYS, 0.5),
    Case("4 relays, one dies half-way", [Uplink(RATE, dies_after=HALF), *[USUAL] * (RELAYS - 1)], 0.75),
    Case("4 relays, one corrupts from half-way on", [Uplink(RATE, corrupts_after=HALF), *[USUAL] * 3], 0.8),
    Case("4 relays, one ten times slower", [Uplink(RATE / SLOWER), *[USUAL] * (RELAYS - 1)]),
)


def rows(rounds: int) -> Iterator[str]:
    """Yields the lines of the table. The cases take turns in each round."""
    yield HEAD
    measured = [[measure(case) for case in CASES] for _ in range(rounds)]
    for index, case in enumerate(CASES):
        seconds = [each[index][0] for each in measured]
        ratio = median(each[index][0] / each[0][0] for each in measured)
        again = median(each[index][1] for each in measured)
        bar = f"≤ {case.bar:g}" if case.bar else "–"
        spread = f"{median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        yield f"| {case.name} | {spread} | {ratio:.2f} | {bar} | {again:.1%} |"


def measure(case: Case) -> tuple[float, float]:
    """Returns the seconds until all have the version, and which share of its bytes came twice."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        key = SigningKey.load_or_create(Path(folder) / "key")
        manifest_sha256 = publish(store, key)
        with network(store, USUAL, case.relays) as (origin, relays):
            sources = relays or [origin]
            return asyncio.run(pull_all(Path(folder), key, sources, manifest_sha256))


def publish(store: Path, key: SigningKey) -> str:
    """Publishes a version of random weights. Returns the SHA-256 of its manifest."""
    writer = StoreWriter(store, RUN, key, {}, [], FILE_BYTES)
    weights = ((name, "float32", shape, os.urandom(FILE_BYTES)) for name, shape in SHAPES.items())
    try:
        return writer.publish(writer.write_full_files(1, weights), 1).manifest_sha256
    finally:
        writer.close()


async def pull_all(
    folder: Path, key: SigningKey, sources: list[str], manifest_sha256: str
) -> tuple[float, float]:
    pullers = [
        Puller(RUN, [key.public], sources, folder / f"server-{index}", SHAPES, {}, RULES)
        for index in range(PULLERS)
    ]
    began = time.monotonic()
    try:
        fetched = await asyncio.gather(*(pull(puller, manifest_sha256) for puller in pullers))
        seconds = time.monotonic() - began
    finally:
        await asyncio.gather(*(puller.close() for puller in pullers))
    whole = PULLERS * FILES * FILE_BYTES
    return seconds, sum(fetched) / whole - 1


async def pull(puller: Puller, manifest_sha256: str) -> int:
    """Returns the bytes that came over the network."""
    progress = PullProgress()
    await puller.fetch(await puller.manifest(1, manifest_sha256), progress)
    return progress.bytes_fetched
