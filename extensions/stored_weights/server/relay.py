"""The relay channel: fetches versions over HTTP from several sources, and verifies them.

It runs the `Puller` of `extensions.stored_weights.store` in a thread with its own event loop.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from contracts.channel import ChannelInfo, InitWeightChannelRequest
from contracts.errors import ContractError, ErrorCode
from contracts.inference import InferenceEngine
from extensions.stored_weights.server.base import Channel, check_dtypes
from extensions.stored_weights.server.loop_thread import LoopThread
from extensions.stored_weights.store.errors import StoreError
from extensions.stored_weights.store.manifest import LatestVersion
from extensions.stored_weights.store.puller import AssembledVersion, Puller, PullRules
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateRecord

REACH_S = 10.0  # timeout for a connection to at least one source


class RelayChannel(Channel):
    """A channel of kind `relay`. `directory` returns the server's directory for fetched weights."""

    def __init__(
        self,
        request: InitWeightChannelRequest,
        engine: InferenceEngine,
        ledger: UpdateLedger,
        directory: Callable[[], Path],
    ):
        super().__init__(request, engine, ledger)
        self._directory = directory
        self._thread: LoopThread | None = None
        self._puller: Puller | None = None
        self._assembled: int | None = None  # last assembled version, a possible base of the next delta

    async def check(self) -> None:
        """Raises ContractError (`no_source`) unless a source accepts a connection."""
        tasks = [asyncio.create_task(_reach(url)) for url in self.request.sources]
        reasons = []
        try:
            async with asyncio.timeout(REACH_S):
                for next_one in asyncio.as_completed(tasks):
                    reason = await next_one
                    if reason is None:
                        return
                    reasons.append(reason)
        except TimeoutError:
            reasons.append(f"no connection within {REACH_S:g} s")
        finally:
            for task in tasks:
                task.cancel()
        raise ContractError(ErrorCode.NO_SOURCE, f"no source can be reached: {reasons[0]}", "sources")

    async def open(self) -> None:
        self._thread = LoopThread("weight puller")
        try:
            await self._thread.run(self._begin)
        except BaseException as error:
            await self.close()
            if isinstance(error, (StoreError, OSError)):
                why = f"the directory for weights cannot be used: {error}"
                raise ContractError(ErrorCode.ENGINE_FAILED, why) from error
            raise

    async def _begin(self) -> None:
        """Creates the puller in the thread, as an attribute, which `close` needs after a cancelled join."""
        asked = self.request
        rules = PullRules(asked.poll_s, asked.idle_timeout_s, asked.min_bytes_per_s)
        shapes: Mapping[str, tuple[int, ...]] = self._engine.parameter_shapes()
        tied = self._engine.tied_parameters()
        self._puller = Puller(
            asked.run, asked.public_keys, asked.sources, self._directory(), shapes, tied, rules
        )

    async def close(self) -> None:
        if self._thread is None:
            return
        thread = self._thread
        puller = self._puller
        self._thread = self._puller = None
        if puller is not None:
            await thread.run(puller.close)
        await thread.close()

    async def poll(self) -> LatestVersion | None:
        """Returns the newest version of the sources, or None if there is no newer one."""
        latest = await self._thread.run(self._puller.poll)
        if latest is not None:
            self.newest_seen = max(latest.version, self.newest_seen or 0)
        return latest

    async def fetch(self, record: UpdateRecord) -> AssembledVersion:
        return await self._thread.run(lambda: self._fetch(record))

    async def _fetch(self, record: UpdateRecord) -> AssembledVersion:
        """Fetches in the thread. First deletes older versions, so that the disk has at most two."""
        puller = self._puller
        version = record.outcome.version
        manifest = await puller.manifest(version, record.manifest_sha256)
        check_dtypes(manifest, self._engine.info())
        puller.keep([v for v in (self._assembled, version) if v is not None])
        assembled = await puller.fetch(manifest, record.transfer)
        self._assembled = version
        return assembled

    def info(self) -> ChannelInfo:
        puller = self._puller
        if puller is None:
            return super().info()
        stale_s = None if puller.seen_at is None else time.monotonic() - puller.seen_at
        figures = {"stale_s": stale_s, "sources": puller.sources_info()}
        return super().info().model_copy(update=figures)


async def _reach(url: str) -> str | None:
    """Connects to a source. Returns a message if that fails, else None."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError as error:
        return f"{url}: {error}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return None
