"""What a relay channel and a shared one have in common, for `joined_channel` and `follower`."""

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

if TYPE_CHECKING:  # it needs the extra `weights`
    from extensions.stored_weights.store.assembly import AssembledVersion

# A version with such an error is bad, whoever is asked for it. Any other StoreError may pass.
PROVEN_BAD = (BadSignatureError, BadManifestError, BadDigestError)
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0


class Channel(abc.ABC):
    """A store as a server uses it. Its methods are called in the server's event loop, and do not block it."""

    def __init__(self, request: InitWeightChannelRequest, engine: InferenceEngine, ledger: UpdateLedger):
        self.request = request
        self.newest_seen: int | None = None
        self.left = False  # whether nothing of it may be applied any more
        self._engine = engine
        self._ledger = ledger
        self._target: UpdateRecord | None = None  # the version that was begun last

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

    async def attempt(self, record: UpdateRecord) -> "AssembledVersion | None":
        """Returns the version of a record, or None for a cause that may pass: the record's error says which.

        Raises UpdateError for a version that is proven bad.
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
        """Has the engine load a version, unless the channel has been left meanwhile."""
        record.progress.transfer_s = time.monotonic() - record.accepted_at
        await self._ledger.acquire_exclusive(record)
        if self.left:
            raise RuntimeError("its channel was left")
        record.digest = stored.manifest.digest
        await self._engine.load_weights(stored_update(stored, kv_cache), record.progress)

    def info(self) -> ChannelInfo:
        """Returns what `/contract` says of the channel."""
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
