"""The trainer's side of weight channels, with real parts: a store, a source that serves it, and HTTP."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import torch
from aiohttp import web

from contracts.store.layout import object_path, proofs_path
from contracts.store.manifest import VersionManifest
from contracts.store.signing import SigningKey
from contracts.store.writer import Published, StoreWriter
from contracts.weights import dtype_name
from inference_adapters.scripted import EMBED, HEAD
from tests.inference_adapters.trainer_peer import TIMEOUT_S, TrainerPeer, Weights, weights

FILE_BYTES = 1024  # so that a version has several files
TIED = {HEAD: EMBED}


class Source:
    """A relay: it serves a directory, holds back objects while `open` is not set, and can do worse."""

    def __init__(self, store: Path):
        self.store = store
        self.open = asyncio.Event()
        self.open.set()
        self.missing = False  # whether it has no objects
        self.spoils = False  # whether it changes a byte of each object
        self.paths: list[str] = []  # that were asked for
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if not request.path.startswith("/objects/"):
            path = self.store / request.path[1:]
            return web.FileResponse(path) if path.is_file() else web.Response(status=404)
        await self.open.wait()
        path = self.store / request.path[1:]
        if self.missing or not path.is_file():
            return web.Response(status=404)
        if self.spoils:
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            return web.Response(body=bytes(content))
        return web.FileResponse(path)

    @property
    def objects_asked(self) -> int:
        return sum(path.startswith("/objects/") for path in self.paths)


@contextlib.asynccontextmanager
async def serving_source(store: Path) -> AsyncIterator[Source]:
    source = Source(store)
    app = web.Application()
    app.router.add_get("/{path:.*}", source.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    source.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield source
    finally:
        source.open.set()
        await runner.cleanup()


class ChannelPeer(TrainerPeer):
    """One run of a trainer that stores its versions. Every call returns (HTTP status, body)."""

    def __init__(self, http: aiohttp.ClientSession, url: str, store: Path):
        super().__init__(http, url)
        self.store = store
        store.chmod(0o700)
        self.key = SigningKey.load_or_create(store.parent / f"{self.run}.key")
        self.writer = StoreWriter(store, self.run, self.key, TIED, (), FILE_BYTES)
        self.sources: list[str] = []
        self.seed = secrets.randbits(32)  # so that no file is in a server's directory already

    def weights(self, version: int) -> dict[str, torch.Tensor]:
        """Returns the weights that the run stores under a version."""
        return weights(self.seed + version)

    def channel_request(self, **changes) -> dict:
        request = {
            "run": self.run,
            "takeover": True,
            "epoch": self.epoch,
            "kind": "relay",
            "sources": self.sources,
            "public_keys": [self.key.public.model_dump()],
            "poll_s": 0.05,
            "idle_timeout_s": 2.0,
        }
        return request | changes

    def shared_request(self, **changes) -> dict:
        return self.channel_request(kind="shared", sources=[self.store.as_uri()]) | changes

    async def join_channel(self, **changes) -> tuple[int, dict]:
        """Opens the next epoch as a channel."""
        self.epoch += 1
        return await self.post("/init_weight_channel", self.channel_request(**changes))

    def store_version(self, version: int, stored: Weights | None = None) -> Published:
        """Publishes a version in the store."""
        tensors = self.weights(version) if stored is None else stored
        raw = ((name, dtype_name(t.dtype), tuple(t.shape), bytes_of(t)) for name, t in tensors.items())
        return self.writer.publish(self.writer.write_full_files(version, raw), self.epoch)

    async def request_stored(self, version: int, published: Published, **changes) -> tuple[int, dict]:
        body = {
            "run": self.run,
            "epoch": self.epoch,
            "version": version,
            "manifest_sha256": published.manifest_sha256,
            "timeout_s": TIMEOUT_S,
        }
        return await self.post("/request_weight_update", body | changes)

    async def pulled(self, version: int, published: Published, **changes) -> dict:
        """Has a version pulled and returns its final status."""
        status, body = await self.request_stored(version, published, **changes)
        assert status == 202, body
        return await self.ended(version)

    async def until_live(self, version: int, within_s: float = TIMEOUT_S) -> dict:
        """Returns `/contract` once the run's version is live."""
        live = {"version": version, "state": "live", "run": self.run}
        return await self.until(lambda c: c["weights"].items() >= live.items(), within_s)

    async def until(self, condition, within_s: float = TIMEOUT_S) -> dict:
        """Returns `/contract` once it satisfies the condition."""
        return await self._until("/contract", condition, within_s)

    async def until_status(self, version: int, condition) -> dict:
        """Returns the status of an update once it satisfies the condition."""
        return await self._until(f"/weight_update/{version}", condition, TIMEOUT_S)

    async def _until(self, path: str, condition, within_s: float) -> dict:
        deadline = asyncio.get_running_loop().time() + within_s
        while (answer := await self.get(path))[0] != 200 or not condition(answer[1]):
            assert asyncio.get_running_loop().time() < deadline, answer
            await asyncio.sleep(0.02)
        return answer[1]

    def put_proof(self) -> str:
        """Writes a proof into the store and returns its name."""
        name = secrets.token_hex(8)
        path = self.store / proofs_path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(secrets.token_bytes(32))
        return name


@contextlib.asynccontextmanager
async def channel_peer(url: str, tmp_path: Path) -> AsyncIterator[tuple[ChannelPeer, Source]]:
    """Yields a new run with a store, and the source of that store."""
    store = tmp_path / "store"
    store.mkdir(exist_ok=True)
    timeout = aiohttp.ClientTimeout(30)
    async with serving_source(store) as source, aiohttp.ClientSession(timeout=timeout) as http:
        peer = ChannelPeer(http, url, store)
        peer.sources = [source.url]
        try:
            yield peer, source
        finally:
            peer.leave()
            peer.writer.close()


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def objects_of(store: Path, manifest: VersionManifest) -> list[Path]:
    """Returns the files of a full version in the store."""
    return [store / object_path(file.sha256) for file in manifest.full.files]
