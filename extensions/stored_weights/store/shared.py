"""Reads versions from a trainer's store on the same machine or a shared file system.

The directory belongs to the same user, so weight files are not hashed. The manifest's signature is verified,
and each file's size and header. Files that other users could write to are refused.
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from contracts.channel import PublicKey
from extensions.stored_weights.store.assembly import AssembledVersion
from extensions.stored_weights.store.errors import BadManifestError, GoneError, NoBaseError, StoreError
from extensions.stored_weights.store.layout import manifest_path, object_path, proofs_path
from extensions.stored_weights.store.local_files import OPEN
from extensions.stored_weights.store.manifest import MAX_MANIFEST_BYTES, StoredFile, VersionManifest
from extensions.stored_weights.store.manifests import ManifestReader
from extensions.stored_weights.store.signing import Verifier
from extensions.stored_weights.store.tensor_file import check_tensor_file

MAX_PROOF_BYTES = 4096
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotSharedError(StoreError):
    """Raised if this process cannot read the directory, or other users could change it."""

    word = "not_shared"


class SharedStore:
    """The store of a run in a directory. Its methods block while they read small files."""

    def __init__(self, directory: Path, reader: ManifestReader):
        self._directory = directory
        self._reader = reader

    @classmethod
    def open(
        cls,
        url: str,
        run: str,
        keys: Sequence[PublicKey],
        shapes: Mapping[str, tuple[int, ...]],
        tied: Mapping[str, str],
    ) -> Self:
        """Opens the store at a `file://` URL. Raises NotSharedError, or ValueError for a bad key."""
        directory = _directory_of(url)
        store = cls(directory, ManifestReader(Verifier(keys), run, shapes, tied))
        for name in (".", "objects", "runs", f"runs/{run}"):
            store._check_directory(name)
        return store

    def proof(self, name: str) -> str:
        """Returns the SHA-256 of a file in `proofs/`. Raises NotSharedError."""
        try:
            self._check_directory("proofs")
            content = self._read(proofs_path(name), MAX_PROOF_BYTES)
        except (GoneError, BadManifestError) as error:
            raise NotSharedError(error.reason) from error
        return hashlib.sha256(content).hexdigest()

    def version(self, version: int, manifest_sha256: str) -> AssembledVersion:
        """Returns a version, with the paths of the store's own files. Raises StoreError."""
        envelope = self._read(manifest_path(self._reader.run, version), MAX_MANIFEST_BYTES)
        if hashlib.sha256(envelope).hexdigest() != manifest_sha256:
            raise BadManifestError(f"the manifest of version {version} is not the one that was named")
        manifest = self._reader.open(envelope, version)
        if manifest.full is None:
            raise NoBaseError(f"version {version} has no full weights, which a shared store needs")
        files = tuple(self._weights(manifest, file) for file in manifest.full.files)
        return AssembledVersion(manifest, None, files)

    def _weights(self, manifest: VersionManifest, file: StoredFile) -> Path:
        """Returns the path of a weight file after comparing its size and header with the manifest."""
        path = self._directory / object_path(file.sha256)
        descriptor = self._open(object_path(file.sha256))
        try:
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size != file.bytes:
            raise BadManifestError(f"{path} has {size} bytes, not {file.bytes}")
        parameters = {parameter.name: parameter for parameter in manifest.parameters}
        check_tensor_file(path, {name: parameters[name] for name in file.names})
        return path

    def _read(self, name: str, most: int) -> bytes:
        descriptor = self._open(name)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise BadManifestError(f"{self._directory / name} is larger than {most} bytes")
        return content

    def _open(self, name: str) -> int:
        """Returns the descriptor of a regular file that only its owner can change. Raises StoreError."""
        path = self._directory / name
        try:
            descriptor = os.open(path, OPEN)
        except FileNotFoundError as error:
            raise GoneError(f"{path} does not exist") from error
        except OSError as error:
            raise NotSharedError(f"{path} cannot be read: {error.strerror}") from error
        status = os.fstat(descriptor)
        fault = "is no regular file" if not stat.S_ISREG(status.st_mode) else self._fault(status)
        if fault:
            os.close(descriptor)
            raise NotSharedError(f"{path} {fault}")
        return descriptor

    def _check_directory(self, name: str) -> None:
        path = self._directory / name
        try:
            status = path.lstat()
        except OSError as error:
            raise NotSharedError(f"{path} cannot be read: {error.strerror}") from error
        fault = "is no directory" if not stat.S_ISDIR(status.st_mode) else self._fault(status)
        if fault:
            raise NotSharedError(f"{path} {fault}")

    def _fault(self, status: os.stat_result) -> str:
        """Returns the reason why a file cannot be trusted, or ""."""
        if status.st_uid not in (os.getuid(), 0):
            return f"belongs to another user: {status.st_uid}"
        if status.st_mode & WRITABLE_BY_OTHERS and not self._is_private():
            return "can be written to by others: chmod -R go-w the store"
        return ""

    def _is_private(self) -> bool:
        """Returns True if other users cannot enter the directory, so that modes below do not matter."""
        return not self._directory.lstat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def _directory_of(url: str) -> Path:
    """Returns the directory of a `file://` URL. Raises NotSharedError for another URL."""
    parts = urlsplit(url)
    directory = Path(unquote(parts.path))
    is_plain = parts.scheme == "file" and parts.hostname in (None, "localhost")
    if not is_plain or parts.query or parts.fragment or not directory.is_absolute():
        raise NotSharedError(f"{url} is no URL of a directory: file:///the/directory")
    return directory
