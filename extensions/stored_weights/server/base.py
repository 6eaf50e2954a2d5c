"""What a relay channel and a shared one have in common, for `weight_updates` and `follower`."""

import abc
import asyncio
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from contracts.channel import ChannelInfo, InitWeightChannelRequest, StoredUpdate
from contracts.inference import EngineInfo, KvCacheMode
from extensions.stored_weights.store.errors import (
    BadDigestError,
    BadManifestError,
    BadSignatureError,
    NoSourceError,
    StoreError,
)
from extensions.stored_weights.store.manifest import VersionManifest
from inference_adapters.update_record import UpdateRecord

if TYPE_CHECKING:  # it needs the extra `weights`
    from extensions.stored_weights.store.assembly import AssembledVersion

# A version with such an error is bad, whoever is asked for it. Any other StoreError may pass.
PROVEN_BAD = (BadSignatureError, BadManifestError, BadDigestError)
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0
LONGEST_REASON = 1000  # characters, because a source may have sent part of it


class SupersededError(StoreError):
    """A newer version makes this one unnecessary."""

    word = "superseded"


class Channel(abc.ABC):
    """A store as a server uses it. Its methods are called in the server's event loop, and do not block it."""

    def __init__(self, request: InitWeightChannelRequest):
        self.request = request
        self.newest_seen: int | None = None

    @abc.abstractmethod
    async def check(self) -> str | None:
        """Returns the proof that the request asks for. Raises ContractError if the store cannot be used."""

    @abc.abstractmethod
    async def open(self) -> None:
        """Begins to use the store. Raises ContractError if that is not possible."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends all use of the store. No fetch may be running."""

    @abc.abstractmethod
    async def fetch(self, record: UpdateRecord) -> "AssembledVersion":
        """Returns the version of a record once it is complete and verified.

        It counts bytes in the record's `transfer`. Raises StoreError or OSError.
        """

    def info(self, target: UpdateRecord | None) -> ChannelInfo:
        """Returns what `/contract` says of the channel. `target` is fetched or applied at present."""
        return ChannelInfo(
            kind=self.request.kind,
            epoch=self.request.epoch,
            follow=self.request.follow,
            newest_seen=self.newest_seen,
            target=target.outcome.version if target else None,
            bytes_done=target.transfer.bytes_done if target else 0,
            bytes_total=target.transfer.bytes_total if target else 0,
        )


def stored_update(version: "AssembledVersion", kv_cache: KvCacheMode) -> StoredUpdate:
    """Returns what the engine is given to load."""
    manifest = version.manifest
    return StoredUpdate(
        version=manifest.version,
        shapes={parameter.name: parameter.shape for parameter in manifest.parameters},
        tied=manifest.tied,
        files=version.files,
        directory=version.directory,
        kv_cache=kv_cache,
    )


def check_dtypes(manifest: VersionManifest, info: EngineInfo) -> None:
    """Raises BadManifestError unless the engine casts from every dtype of the version."""
    for parameter in manifest.parameters:
        if parameter.dtype not in info.accepts_dtypes:
            raise BadManifestError(
                f"{parameter.name} is {parameter.dtype}; this server accepts {info.accepts_dtypes}"
            )


def pauses() -> Iterator[float]:
    """Yields the seconds to wait before each new attempt: they double, up to a longest one."""
    return (min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(k, 16)) for k in itertools.count())


def passes(error: StoreError | OSError) -> bool:
    """Returns whether the same version may be fetched later."""
    return not isinstance(error, PROVEN_BAD)


async def fetched_within(channel: Channel, record: UpdateRecord) -> "AssembledVersion":
    """Returns the version of a record, which is tried again until the record's timeout.

    Raises the last StoreError or OSError.
    """
    last: Exception | None = None
    try:
        async with asyncio.timeout(record.timeout_s):
            for pause_s in pauses():
                try:
                    return await channel.fetch(record)
                except (StoreError, OSError) as error:
                    if not passes(error):
                        raise
                    last = error
                    record.outcome.error = reason_of(error)
                await asyncio.sleep(pause_s)
    except TimeoutError:
        pass
    raise last or NoSourceError(f"only {record.transfer.bytes_fetched} bytes came in {record.timeout_s:g} s")


def reason_of(error: BaseException) -> str:
    """Returns what a status says of an error. That of a StoreError begins with its word."""
    reason = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}..."
