"""The shared channel: versions are in a directory that trainer and server share, such as one in /dev/shm.

The engine maps the files that the trainer has written, without a copy.
"""

from contracts.channel import ChannelInfo, InitWeightChannelRequest, SourceInfo
from contracts.errors import ContractError, ErrorCode
from contracts.inference import InferenceEngine
from extensions.stored_weights.server.base import Channel, check_dtypes
from extensions.stored_weights.store.assembly import AssembledVersion
from extensions.stored_weights.store.errors import StoreError
from extensions.stored_weights.store.shared import SharedStore
from inference_adapters.threads import in_daemon_thread
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateRecord


class SharedChannel(Channel):
    """A channel of kind `shared`."""

    def __init__(self, request: InitWeightChannelRequest, engine: InferenceEngine, ledger: UpdateLedger):
        super().__init__(request, engine, ledger)
        self._store: SharedStore | None = None

    async def check(self) -> str | None:
        """Returns the SHA-256 of the proof. Raises ContractError (`not_shared`) if that fails."""
        try:
            return await in_daemon_thread(self._proof)
        except (StoreError, OSError) as error:
            url = self.request.sources[0]
            why = error.reason if isinstance(error, StoreError) else error
            raise ContractError(ErrorCode.NOT_SHARED, f"{url}: {why}", "sources") from error

    def _proof(self) -> str | None:
        asked = self.request
        shapes = self._engine.parameter_shapes()
        tied = self._engine.tied_parameters()
        self._store = SharedStore.open(asked.sources[0], asked.run, asked.public_keys, shapes, tied)
        return None if asked.proof is None else self._store.proof(asked.proof)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def fetch(self, record: UpdateRecord) -> AssembledVersion:
        version = await in_daemon_thread(self._store.version, record.outcome.version, record.manifest_sha256)
        check_dtypes(version.manifest, self._engine.info())
        self.newest_seen = max(version.manifest.version, self.newest_seen or 0)
        size = version.manifest.total_bytes
        record.transfer.bytes_done = record.transfer.bytes_total = record.transfer.bytes_fetched = size
        return version

    def info(self) -> ChannelInfo:
        source = SourceInfo(url=self.request.sources[0], success=1.0, bytes_per_s=0.0)
        return super().info().model_copy(update={"sources": [source]})
