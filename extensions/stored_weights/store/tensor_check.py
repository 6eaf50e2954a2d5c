"""Verifies tensor files against a manifest: names, dtypes, shapes and SHA-256 of each parameter."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from extensions.stored_weights.store.errors import BadDigestError
from extensions.stored_weights.store.manifest import StoredParameter, VersionManifest, canonical
from extensions.stored_weights.store.object_files import Stamp, stamp
from extensions.stored_weights.store.part_file import CHUNK_BYTES
from extensions.stored_weights.store.tensor_file import TensorEntry, TensorFile
from extensions.stored_weights.store.worker_thread import Stop


class TensorCheck:
    """Checks files. It does not read unchanged files again that it has checked before."""

    def __init__(self) -> None:
        self._checked: dict[Stamp, str] = {}  # `_content` of checked files

    def check(self, paths: Iterable[Path], manifest: VersionManifest, stop: Stop) -> dict[str, list[str]]:
        """Returns the names of the parameters in each file, by the file's name.

        Raises BadDigestError unless the files together have each parameter once, with the right bytes.
        """
        missing = {parameter.name: parameter for parameter in manifest.parameters}
        held = {}
        for path in paths:
            before = stamp(path)
            entries = tensor_entries(path)
            expected = [_expected(entry, missing, path) for entry in entries]
            content = _content(expected)
            if self._checked.get(before) != content:
                _check_bytes(path, entries, expected, stop)
                self._checked[before] = content
            held[path.name] = [entry.name for entry in entries]
        if missing:
            raise BadDigestError(f"{min(missing)} is in no file")
        return held

    def forget_all_but(self, stamps: Collection[Stamp]) -> None:
        """Forgets all files except those with these stamps."""
        for each in list(self._checked):
            if each not in stamps:
                del self._checked[each]


def tensor_entries(path: Path) -> list[TensorEntry]:
    """Returns the tensors of a file in the order of their data. Raises BadDigestError if it is malformed."""
    with TensorFile.open(path) as file:
        return list(file.entries.values())


def _expected(entry: TensorEntry, missing: dict[str, StoredParameter], path: Path) -> StoredParameter:
    """Removes the entry's parameter from `missing`. Raises BadDigestError if it is unknown or different."""
    parameter = missing.pop(entry.name, None)
    if parameter is None:
        raise BadDigestError(f"{path.name} holds {entry.name}, which is unknown or in another file as well")
    if (entry.dtype, entry.shape) != (parameter.dtype, parameter.shape):
        raise BadDigestError(f"{path.name} holds {entry.name} with another dtype or shape")
    return parameter


def _content(parameters: Sequence[StoredParameter]) -> str:
    """Returns a hash that identifies the content of a file with these parameters."""
    described = [[p.name, p.dtype, list(p.shape), p.sha256] for p in parameters]
    return hashlib.sha256(canonical(described)).hexdigest()


def _check_bytes(
    path: Path, entries: Sequence[TensorEntry], expected: Sequence[StoredParameter], stop: Stop
) -> None:
    with path.open("rb", buffering=0) as file:
        for entry, parameter in zip(entries, expected, strict=True):
            file.seek(entry.start)
            found = hashlib.sha256()
            left = entry.end - entry.start
            while left and (chunk := file.read(min(left, CHUNK_BYTES))):
                stop.check()
                found.update(chunk)
                left -= len(chunk)
            if found.hexdigest() != parameter.sha256:
                raise BadDigestError(f"{entry.name} does not have the bytes that the manifest names")
