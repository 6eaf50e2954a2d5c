"""The trainer's side of weight channels: a store, and a source that serves it."""

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import torch

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from contracts.conformance.inference.stores.source import OBJECTS
from contracts.store.layout import latest_path
from contracts.store.signing import SigningKey
from contracts.store.writer import Published, StoreWriter
from contracts.weights import dtype_name
from inference_adapters.scripted import EMBED, HEAD, ScriptedEngine
from tests.contracts.store.http_source import HttpSource
from tests.limits import HANG_S

FILE_BYTES = 1024  # so that a version has several files


class ChannelPeer:
    """One run of a trainer that stores its versions."""

    def __init__(self, store: Path, source: HttpSource):
        self.run = uuid.uuid4().hex
        self.epoch = 0
        self.source = source
        self.key = SigningKey.load_or_create(store.parent / f"{self.run}.key")
        self.writer = StoreWriter(store, self.run, self.key, {HEAD: EMBED}, (), FILE_BYTES)
        self.seed = secrets.randbits(32)  # so that no file is in a server's directory already

    @property
    def objects_asked(self) -> int:
        return sum(asked.path.startswith(OBJECTS) for asked in self.source.asked)

    async def is_looked_for(self) -> None:
        """Waits until the newest version has been looked for twice more: once since now began."""
        path = latest_path(self.run)
        before = self.source.times(path)
        await until(lambda: self.source.times(path) >= before + 2)

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        """Returns the weights that the run stores under a version."""
        return ScriptedEngine.initial_weights(self.seed + version)

    def join(self, **changes) -> InitWeightChannelRequest:
        """Returns the request to join the next epoch as a channel."""
        self.epoch += 1
        request = {
            "run": self.run, "takeover": True, "epoch": self.epoch, "kind": "relay",
            "sources": [self.source.url], "public_keys": [self.key.public.model_dump()], "poll_s": 0.05,
            "idle_timeout_s": HANG_S,
        }  # fmt: skip
        return InitWeightChannelRequest(**request | changes)

    def store_version(self, version: int, stored: dict[str, torch.Tensor] | None = None) -> Published:
        """Publishes a version in the store."""
        tensors = stored or self.weights(version)
        raw = ((name, dtype_name(t.dtype), tuple(t.shape), bytes_of(t)) for name, t in tensors.items())
        return self.writer.publish(self.writer.write_full_files(version, raw), self.epoch)

    def update(self, published: Published) -> ChannelUpdateRequest:
        return ChannelUpdateRequest(
            run=self.run,
            epoch=self.epoch,
            version=published.manifest.version,
            manifest_sha256=published.manifest_sha256,
            timeout_s=HANG_S,
        )


@contextlib.asynccontextmanager
async def channel_peer(directory: Path) -> AsyncIterator[ChannelPeer]:
    """Yields a new run with a store, and a source of that store."""
    store = directory / "store"
    store.mkdir(parents=True)
    async with HttpSource(store) as source:
        peer = ChannelPeer(store, source)
        try:
            yield peer
        finally:
            source.open.set()
            peer.writer.close()


async def until(condition: Callable[[], object]) -> None:
    """Waits until the condition holds."""
    while not condition():
        await asyncio.sleep(0.005)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
