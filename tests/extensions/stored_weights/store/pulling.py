"""A puller of the small model of `builders`, and what its tests ask of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from extensions.stored_weights.store.assembly import AssembledVersion
from extensions.stored_weights.store.puller import Puller, PullProgress, PullRules
from extensions.stored_weights.store.signing import SigningKey
from extensions.stored_weights.store.tensor_file import TensorFile
from extensions.stored_weights.store.writer import Published
from tests.extensions.stored_weights.store.builders import SHAPES, Weights
from tests.extensions.stored_weights.store.http_source import HttpSource
from tests.limits import HANG_S

NO_SERVER = "http://127.0.0.1:1"
RULES = PullRules(poll_s=0.05, idle_timeout_s=HANG_S, min_bytes_per_s=1000)


def new_puller(tmp_path: Path, *urls: str, rules: PullRules = RULES, run: str = "run", **options) -> Puller:
    key = SigningKey.load_or_create(tmp_path / f"{run}.key")
    directory = options.get("directory", tmp_path / "weights")
    shapes = options.get("shapes", SHAPES)
    return Puller(run, [key.public], urls, directory, shapes, options.get("tied", {}), rules)


@asynccontextmanager
async def pulling(tmp_path: Path, *sources: HttpSource | str, **options) -> AsyncIterator[Puller]:
    urls = [source if isinstance(source, str) else source.url for source in sources]
    puller = new_puller(tmp_path, *urls, **options)
    try:
        yield puller
    finally:
        await puller.close()


async def pull(
    puller: Puller, published: Published, progress: PullProgress | None = None
) -> AssembledVersion:
    """Fetches a version by its number and the SHA-256 of its manifest."""
    manifest = await puller.manifest(published.manifest.version, published.manifest_sha256)
    return await puller.fetch(manifest, progress or PullProgress())


def content(assembled: AssembledVersion) -> dict[str, bytes]:
    """Returns the bytes of every parameter."""
    read = {}
    for path in assembled.files:
        with TensorFile.open(path) as file:
            read |= {name: file.raw(name).tobytes() for name in file.entries}
    return read


def as_bytes(weights: Weights) -> dict[str, bytes]:
    return {name: raw.tobytes() for name, raw in weights.items()}


def one_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def total_bytes(published) -> int:
    """Returns the bytes of the full files and the files beside them."""
    return sum(file.bytes for file in [*published.manifest.full.files, *published.manifest.model_files])
