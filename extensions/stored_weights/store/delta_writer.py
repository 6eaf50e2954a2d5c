"""Applies deltas to tensor files on disk, with one parameter in memory at a time."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from extensions.stored_weights.store.delta import apply_delta
from extensions.stored_weights.store.manifest import StoredParameter
from extensions.stored_weights.store.tensor_check import tensor_entries
from extensions.stored_weights.store.tensor_file import RawBytes, TensorEntry
from extensions.stored_weights.store.worker_thread import Stop


class DeltaWriter:
    """Changes parameters in copied files. Each parameter is written back when the next one is read."""

    def __init__(self, paths: Iterable[Path], stop: Stop):
        self._entries: dict[str, tuple[Path, TensorEntry]] = {
            entry.name: (path, entry) for path in paths for entry in tensor_entries(path)
        }
        self._stop = stop
        self._name = ""
        self._bytes: RawBytes | None = None

    def apply(self, path: Path, parameters: dict[str, StoredParameter], names: list[str]) -> None:
        """Applies a file of a delta. Raises BadDigestError if it is malformed, or OSError."""
        apply_delta(path, parameters, names, self._parameter)
        self._write_back()

    def _parameter(self, name: str) -> RawBytes:
        """Returns a writable array of a parameter's bytes, valid until the next call."""
        self._stop.check()
        self._write_back()
        path, entry = self._entries[name]
        self._name = name
        self._bytes = np.fromfile(path, np.uint8, entry.end - entry.start, offset=entry.start)
        return self._bytes

    def _write_back(self) -> None:
        if self._bytes is None:
            return
        path, entry = self._entries[self._name]
        with path.open("r+b", buffering=0) as file:
            file.seek(entry.start)
            rest = self._bytes.data
            while rest:
                rest = rest[file.write(rest) :]
        self._bytes = None
