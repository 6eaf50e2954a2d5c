"""Makes weight channels, within what the server's command line allows: its sources and its directory."""

import tempfile
from pathlib import Path

from contracts.channel import InitWeightChannelRequest
from contracts.inference import InferenceEngine
from extensions.stored_weights.server.base import Channel
from extensions.stored_weights.server.weight_sources import SourceList
from inference_adapters.capabilities import stores_can_be_read


class ChannelFactory:
    """What all channels of one server share.

    sources: those that the server accepts.
    directory: where fetched versions are stored and stay. By default it is a temporary one of this process.
    """

    def __init__(self, sources: SourceList | None = None, directory: Path | None = None):
        """Raises StoreError or OSError if the directory cannot be used, or another server uses it."""
        self.sources = sources or SourceList()
        self._directory = directory.resolve() if directory else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is not None and stores_can_be_read():
            from extensions.stored_weights.store.directory import WeightDirectory

            WeightDirectory.open(directory)  # which this process uses until it ends

    def channel(self, request: InitWeightChannelRequest, engine: InferenceEngine) -> Channel:
        """Returns a channel that is not open yet. It imports the packages of the extra `weights`."""
        if request.kind == "shared":
            from extensions.stored_weights.server.shared import SharedChannel

            return SharedChannel(request, engine)
        from extensions.stored_weights.server.relay import RelayChannel

        return RelayChannel(request, engine, self._place)

    def _place(self) -> Path:
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
