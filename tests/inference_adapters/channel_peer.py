"""The trainer's side of weight channels, with real parts: a store, and a source that serves it."""

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import torch
from aiohttp import web

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest
from contracts.store.layout import latest_path
from contracts.store.signing import SigningKey
from contracts.store.writer import Published, StoreWriter
from contracts.weights import dtype_name
from inference_adapters.scripted import EMBED, HEAD, ScriptedEngine
from tests.limits import HANG_S

FILE_BYTES = 1024  # so that a version has several files


class Source:
    """A relay: it serves a directory, holds back objects while `open` is not set, and can do worse."""

    def __init__(self, store: Path):
        self.store = store
        self.open = asyncio.Event()
        self.open.set()
        self.missing = False  # whether it has no objects
        self.paths: list[str] = []  # that were asked for
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        path = self.store / request.path[1:]
        if request.path.startswith("/objects/"):
            await self.open.wait()
            if self.missing:
                return web.Response(status=404)
        return web.FileResponse(path) if path.is_file() else web.Response(status=404)

    @property
    def objects_asked(self) -> int:
        return sum(path.startswith("/objects/") for path in self.paths)

    async def is_looked_at(self, run: str) -> None:
        """Waits until the newest version has been looked for twice more: once since now began."""
        looks = self.paths.count(f"/{latest_path(run)}")
        await until(lambda: self.paths.count(f"/{latest_path(run)}") >= looks + 2)


class ChannelPeer:
    """One run of a trainer that stores its versions."""

    def __init__(self, store: Path, source: Source):
        self.run = uuid.uuid4().hex
        self.epoch = 0
        self.source = source
        self.key = SigningKey.load_or_create(store.parent / f"{self.run}.key")
        self.writer = StoreWriter(store, self.run, self.key, {HEAD: EMBED}, (), FILE_BYTES)
        self.seed = secrets.randbits(32)  # so that no file is in a server's directory already

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        """Returns the weights that the run stores under a version."""
        return ScriptedEngine.initial_weights(self.seed + version)

    def join(self, **changes) -> InitWeightChannelRequest:
        """Returns the request to join the next epoch as a channel."""
        self.epoch += 1
        request = {
            "run": self.run,
            "takeover": True,
            "epoch": self.epoch,
            "kind": "relay",
            "sources": [self.source.url],
            "public_keys": [self.key.public.model_dump()],
            "poll_s": 0.05,
            "idle_timeout_s": HANG_S,
        }
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
    source = Source(store)
    app = web.Application()
    app.router.add_get("/{path:.*}", source.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    source.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    peer = ChannelPeer(store, source)
    try:
        yield peer
    finally:
        source.open.set()
        await runner.cleanup()
        peer.writer.close()


async def until(condition: Callable[[], object]) -> None:
    """Waits until the condition holds."""
    while not condition():
        await asyncio.sleep(0.005)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
