"""The server's side: reads the versions that the trainer has written into the directory."""

from pathlib import Path

from contracts.channel import StoredUpdate
from contracts.errors import ContractError, ErrorCode
from inference_adapters.channel import WeightChannel, WeightChannels


class CopiedChannels(WeightChannels):
    def __init__(self, directory):
        self._directory = directory

    @classmethod
    def add_arguments(cls, parser):
        parser.add_argument("--copies", type=Path, required=True)

    @classmethod
    def of(cls, args):
        return cls(args.copies)

    def capabilities(self, engine):
        return ("shared",)

    def check(self, request, engine, caller):
        if request.sources != [f"file://{self._directory}"]:
            why = f"this server reads {self._directory} alone"
            raise ContractError(ErrorCode.INVALID_REQUEST, why, "sources")

    def channel(self, request, engine, ledger):
        return CopiedChannel(request, engine, ledger, self._directory)


class CopiedChannel(WeightChannel):
    def __init__(self, request, engine, ledger, directory):
        self.request = request
        self._engine = engine
        self._ledger = ledger
        self._directory = directory

    async def pull(self, record, kv_cache):
        version = record.outcome.version
        path = self._directory / f"{version}.safetensors"
        record.transfer.bytes_fetched = path.stat().st_size
        await self._ledger.acquire_exclusive(record)
        shapes = self._engine.parameter_shapes()
        tied = self._engine.tied_parameters()
        update = StoredUpdate(version, shapes, tied, (path,), None, kv_cache)
        await self._engine.load_weights(update, record.progress)
