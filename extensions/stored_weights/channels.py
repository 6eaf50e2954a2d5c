"""The weight channels `relay` and `shared` of a server.

A server offers them with `--weight-channels extensions.stored_weights.channels.StoredChannels`. The packages
of the extra `weights` are imported when the first channel is created.
"""

import argparse
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from contracts.channel import InitWeightChannelRequest
from contracts.errors import ContractError, ErrorCode
from contracts.inference import InferenceEngine
from contracts.support.locations import Location
from extensions.stored_weights.server.joined_channel import JoinedChannel
from extensions.stored_weights.server.public_keys import check_key
from extensions.stored_weights.server.weight_sources import SourceList
from extensions.stored_weights.store.errors import StoreError
from inference_adapters.channel import Caller, WeightChannels
from inference_adapters.manifest_check import check_kv_cache
from inference_adapters.update_ledger import UpdateLedger

KINDS = ("relay", "shared")
NEEDED = ("aiohttp", "cryptography", "numpy", "safetensors", "zstandard")  # the extra `weights`


class StoredChannels(WeightChannels):
    """The factory of a server's channels, with the options that they share.

    sources: allowed sources.
    directory: persistent directory for fetched versions. By default a temporary one.
    """

    def __init__(self, sources: Sequence[Location] | None = None, directory: Path | None = None):
        """Raises OSError or ValueError if the directory cannot be used, or another server uses it."""
        if missing := [package for package in NEEDED if find_spec(package) is None]:
            raise ValueError(
                f'weight channels need {" and ".join(missing)}: pip install "pipelinerl[weights]"'
            )
        self._sources = SourceList(sources)
        self._directory = directory.resolve() if directory else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is not None:
            from extensions.stored_weights.store.directory import WeightDirectory

            try:
                WeightDirectory.open(directory)  # locked until this process ends
            except StoreError as error:
                raise ValueError(str(error)) from error

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--weight-sources",
            nargs="+",
            type=_source,
            metavar="URL",
            help="weight channels may use what lies below these: http://..., https://..., file:///...; "
            "by default loopback addresses and the caller's own host",
        )
        parser.add_argument(
            "--weight-directory",
            type=Path,
            help="where fetched weights are stored, and found again after a restart; "
            "by default a temporary one",
        )

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        return cls(args.weight_sources, args.weight_directory)

    def capabilities(self, engine: InferenceEngine) -> Sequence[str]:
        """Returns `relay`, `shared` and `delta`, or nothing if the engine cannot load stored weights."""
        loads = type(engine).load_weights is not InferenceEngine.load_weights
        return (*KINDS, "delta") if loads else ()

    def check(self, request: InitWeightChannelRequest, engine: InferenceEngine, caller: Caller) -> None:
        """Raises ContractError if the request is invalid, or a source is not allowed."""
        if request.kind == "shared":
            _refuse(request.follow, "follow", "a shared store is not followed: request each update")
            _refuse(len(request.sources) > 1, "sources", "a shared store is one directory")
        else:
            _refuse(request.proof is not None, "proof", "only a shared store has one")
        check_kv_cache(request.kv_cache, engine.info())
        for key in request.public_keys:
            check_key(key)
        for source in request.sources:
            self._sources.check(source, request.kind, caller)

    def channel(
        self, request: InitWeightChannelRequest, engine: InferenceEngine, ledger: UpdateLedger
    ) -> JoinedChannel:
        if request.kind == "shared":
            from extensions.stored_weights.server.shared import SharedChannel

            return JoinedChannel(SharedChannel(request, engine, ledger), ledger)
        from extensions.stored_weights.server.relay import RelayChannel

        return JoinedChannel(RelayChannel(request, engine, ledger, self._directory_to_use), ledger)

    def _directory_to_use(self) -> Path:
        if self._directory is not None:
            return self._directory
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="weights-")
        return Path(self._temporary.name)

    def close(self) -> None:
        """Deletes the temporary directory."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


def _source(text: str) -> Location:
    try:
        return Location.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _refuse(wrong: bool, param: str, why: str) -> None:
    if wrong:
        raise ContractError(ErrorCode.INVALID_REQUEST, f"{param}: {why}", param)
