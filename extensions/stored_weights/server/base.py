"""Base class of the relay and the shared channel, for `joined_channel` and `follower`."""

import abc
import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from contracts.channel import ChannelInfo, InitWeightChannelRequest, StoredUpdate
from contracts.inference import EngineInfo, InferenceEngine
from contracts.limits import KvCacheMode
from extensions.stored_weights.store.errors import (
    BadDigestError,
    BadManifestError,
    BadSignatureError,
    StoreError,
)
from extensions.stored_weights.store.manifest import VersionManifest
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateError, UpdateRecord, reason_of

if TYPE_CHECKING:  # the import needs the extra `weights`
    from extensions.stored_weights.store.assembly import AssembledVersion

# These errors mean that the version is invalid. After any other StoreError a retry may succeed.
PROVEN_BAD = (BadSignatureError, BadManifestError, BadDigestError)
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0


class Channel(abc.ABC):
    """A server's access to a store. Methods run in the server's event loop, and do not block it."""

    def __init__(self, request: InitWeightChannelRequest, engine: InferenceEngine, ledger: UpdateLedger):
        self.request = request
        self.newest_seen: int | None = None
        self.left = False  # True if its versions must not be applied any more
        self._engine = engine
        self._ledger = ledger
        self._target: UpdateRecord | None = None  # last version that was begun

    @abc.abstractmethod
    async def check(self) -> str | None:
        """Returns the proof that the request asks for. Raises ContractError if the store cannot be used."""

    @abc.abstractmethod
    async def open(self) -> None:
        """Opens the store. Raises ContractError if that fails."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Closes the store. No fetch may be running."""

    @abc.abstractmethod
    async def fetch(self, record: UpdateRecord) -> "AssembledVersion":
        """Fetches the version of a record, and returns it complete and verified.

        Counts bytes in the record's `transfer`. Raises StoreError or OSError.
        """

    async def attempt(self, record: UpdateRecord) -> "AssembledVersion | None":
        """Fetches the version of a record. Returns None, and sets the record's error, if a retry may succeed.

        Raises UpdateError if the version is invalid.
        """
        self._target = record
        try:
            return await self.fetch(record)
        except PROVEN_BAD as error:
            raise UpdateError(str(error), skipped=True) from error
        except StoreError as error:
            record.outcome.error = reason_of(UpdateError(str(error)))
        except OSError as error:
            record.outcome.error = reason_of(error)
        return None

    async def apply(self, record: UpdateRecord, stored: "AssembledVersion", kv_cache: KvCacheMode) -> None:
        """Makes the engine load a version. Raises RuntimeError if the channel was left."""
        record.progress.transfer_s = time.monotonic() - record.accepted_at
        await self._ledger.acquire_exclusive(record)
        if self.left:
            raise RuntimeError("its channel was left")
        record.digest = stored.manifest.digest
        update = stored_update(stored, kv_cache, record.manifest_sha256)
        await self._engine.load_weights(update, record.progress)

    def info(self) -> ChannelInfo:
        """Returns the channel's state for `/contract`."""
        target = self._target if self._target and self._target.receiving else None
        return ChannelInfo(
            kind=self.request.kind,
            epoch=self.request.epoch,
            follow=self.request.follow,
            newest_seen=self.newest_seen,
            target=target.outcome.version if target else None,
            bytes_done=target.transfer.bytes_done if target else 0,
            bytes_total=target.transfer.bytes_total if target else 0,
        )


def stored_update(
    version: "AssembledVersion", kv_cache: KvCacheMode, manifest_sha256: str | None
) -> StoredUpdate:
    """Returns the argument of the engine's `load_weights`."""
    manifest = version.manifest
    return StoredUpdate(
        version=manifest.version,
        shapes={parameter.name: parameter.shape for parameter in manifest.parameters},
        tied=manifest.tied,
        files=version.files,
        directory=version.directory,
        kv_cache=kv_cache,
        manifest_sha256=manifest_sha256,
    )


def check_dtypes(manifest: VersionManifest, info: EngineInfo) -> None:
    """Raises BadManifestError unless the engine accepts every dtype of the version."""
    for parameter in manifest.parameters:
        if parameter.dtype not in info.accepts_dtypes:
            raise BadManifestError(
                f"{parameter.name} is {parameter.dtype}; this server accepts {info.accepts_dtypes}"
            )


def pauses() -> Iterator[float]:
    """Returns an endless iterator of exponential backoff times in seconds."""
    return (min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(k, 16)) for k in itertools.count())
