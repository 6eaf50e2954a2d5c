"""The trainer's side of weight channels: a store, and a source that serves it."""

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import torch

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from extensions.stored_weights.conformance.source import OBJECTS
from extensions.stored_weights.conformance.store import KitStore, Offer
from extensions.stored_weights.store.layout import latest_path
from inference_adapters.scripted import EMBED, HEAD, ScriptedEngine
from tests.extensions.stored_weights.store.http_source import HttpSource
from tests.limits import HANG_S


class ChannelPeer:
    """One run of a trainer that stores its versions."""

    def __init__(self, store: Path, source: HttpSource):
        self.run = uuid.uuid4().hex
        self.epoch = 0
        self.source = source
        self.store = KitStore(store, self.run, {HEAD: EMBED})
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
            "sources": [self.source.url], "public_keys": [self.store.key.public.model_dump()], "poll_s": 0.05,
            "idle_timeout_s": HANG_S,
        }  # fmt: skip
        return InitWeightChannelRequest(**request | changes)

    def store_version(self, version: int, stored: dict[str, torch.Tensor] | None = None) -> Offer:
        """Publishes a version in the store."""
        offer = self.store.offer(version, stored or self.weights(version), epoch=self.epoch)
        self.store.announce(offer)
        return offer

    def update(self, offer: Offer) -> ChannelUpdateRequest:
        return ChannelUpdateRequest(
            run=self.run,
            epoch=self.epoch,
            version=offer.version,
            manifest_sha256=offer.sha256,
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


async def until(condition: Callable[[], object]) -> None:
    """Waits until the condition holds."""
    while not condition():
        await asyncio.sleep(0.005)
