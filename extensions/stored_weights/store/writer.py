"""Writes the versions of a run into a store: weights, then hashes and deltas, then signed manifests.

A trainer calls `write_full_files` while it gathers the weights, and `publish` later, in another thread.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from contracts.limits import RunName
from contracts.support.files import sync
from extensions.stored_weights.store.latest_file import LatestFile
from extensions.stored_weights.store.layout import manifest_path, object_path
from extensions.stored_weights.store.local_manifest import read_manifest
from extensions.stored_weights.store.manifest import MAX_MANIFEST_BYTES, StoredFile, VersionManifest
from extensions.stored_weights.store.model_files import ModelFiles
from extensions.stored_weights.store.open_version import FileContent, OpenVersion
from extensions.stored_weights.store.signing import MANIFEST_TYPE, SigningKey, Verifier
from extensions.stored_weights.store.store_lock import locked
from extensions.stored_weights.store.tensor_file import Tensor
from extensions.stored_weights.store.version_files import Offer, add_delta, add_full
from extensions.stored_weights.store.writing_directory import WritingDirectory
from extensions.stored_weights.store.written import Written, write_files

FILE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Published:
    """A version that is in the store."""

    manifest: VersionManifest
    manifest_sha256: str  # of the signed envelope


class StoreWriter:
    """The only writer of a run. Close it at the end.

    `write_full_files`, `publish` and `renew_latest` may be called in different threads, but calls of
    `publish` must not overlap.
    """

    def __init__(
        self,
        store: Path,
        run: str,
        key: SigningKey,
        tied: Mapping[str, str],
        model_files: Sequence[Path],
        file_bytes: int = FILE_BYTES,
        deltas: bool = False,
        full_every: int = 10,
    ):
        """Raises ValueError if another process writes this run, and StoreError if another key signed it.

        deltas: also write deltas. Then at least one in `full_every` versions has full files.
        """
        self._store = store
        self._run = TypeAdapter(RunName).validate_python(run)
        self._key = key
        self._tied = dict(tied)
        self._file_bytes = file_bytes
        self._deltas = deltas
        self._full_every = full_every
        self._base: OpenVersion | None = None  # last published version, if deltas are written
        self._since_full = 0  # number of versions since the last full one
        self._hashed: dict[FileContent, StoredFile] = {}  # files of the last full version
        self._objects: set[str] = set()  # objects of the last published version
        for directory in (store / "objects", store / "runs" / run):
            directory.mkdir(parents=True, exist_ok=True)
        self._latest = LatestFile(store, run, key)
        self._writing = WritingDirectory(store, run)
        try:
            self._model_files = ModelFiles(model_files, self._writing.new("model-files-"))
        except BaseException:
            self._writing.close()
            raise

    def write_full_files(
        self,
        version: int,
        weights: Iterable[Tensor],
        beside: Callable[[], Mapping[str, bytes]] = dict,
    ) -> Written:
        """Writes the weights to temporary files, without hashing, syncing or adding them to the store.

        It buffers the weights of one file of `file_bytes` bytes, so tensors must not change until then.
        `beside` is called at the end, and returns further files of the version by name. Raises OSError if the
        disk is full.
        """
        return write_files(version, weights, self._writing.new(f"{version}-"), self._file_bytes, beside)

    def publish(self, written: Written, epoch: int) -> Published:
        """Adds a version to the store: its files, then its manifest, then `latest.json`.

        Does nothing if the store has the version with the same weights. Raises ValueError if it has other
        weights, or a newer version. Raises OSError if the disk is full. After an error the store is
        unchanged. The temporary files are always removed.
        """
        try:
            version = OpenVersion(written, self._tied)
            try:
                published = self._publish(version, epoch, written.directory, written.beside)
            except BaseException:
                version.close()
                raise
        finally:
            written.discard()
        self._become_base(version)
        return published

    def renew_latest(self) -> None:
        """Signs `latest.json` again with the current time, which shows that the run is alive."""
        self._latest.renew(self._writing.path / "latest.json")

    def close(self) -> None:
        """Removes temporary files, and lets another process write this run."""
        if self._base is not None:
            self._base.close()
            self._base = None
        self._writing.close()

    def _publish(
        self, version: OpenVersion, epoch: int, directory: Path, beside: Sequence[Path]
    ) -> Published:
        path = self._store / manifest_path(self._run, version.version)
        part = directory / "latest.json"
        if path.exists():
            published = self._already(path, version)
            latest = self._latest.prepare(version.version, published.manifest_sha256, epoch, part)
        else:
            self._latest.check_not_older(version.version)
            offer = self._offer(version, directory, beside)
            published = self._sign(version, offer, epoch, directory / path.name)
            latest = self._latest.prepare(version.version, published.manifest_sha256, epoch, part)
            with locked(self._store):
                self._put(offer.objects)
                os.replace(directory / path.name, path)
            sync(path.parent)
            self._remember(version, offer)
        self._since_full = 0 if published.manifest.full else self._since_full + 1
        self._latest.replace(latest, part)
        return published

    def _already(self, path: Path, version: OpenVersion) -> Published:
        """Returns the stored version of this number. Raises ValueError if its weights differ."""
        manifest, envelope = read_manifest(path, Verifier([self._key.public]))
        if manifest.digest != version.digest:
            raise ValueError(f"version {version.version} is already published with other weights")
        return Published(manifest, hashlib.sha256(envelope).hexdigest())

    def _offer(self, version: OpenVersion, directory: Path, beside: Sequence[Path]) -> Offer:
        """Returns the files of the version's manifest, synced to disk under temporary names."""
        offer = Offer()
        if self._base is not None:
            add_delta(offer, version, self._base, directory)
        if offer.delta is None or self._since_full + 1 >= self._full_every:
            add_full(offer, version, self._hashed)
        self._model_files.add_to(offer, directory, beside)
        for path in offer.objects.values():
            sync(path)
        return offer

    def _sign(self, version: OpenVersion, offer: Offer, epoch: int, part: Path) -> Published:
        """Writes the signed manifest to the temporary file `part`. Raises ValueError if it is too large."""
        manifest = VersionManifest(
            run=self._run,
            epoch=epoch,
            version=version.version,
            tied=self._tied,
            parameters=version.parameters,
            digest=version.digest,
            full=offer.full,
            delta=offer.delta,
            model_files=offer.model_files,
        )
        envelope = self._key.sign(manifest.canonical(), MANIFEST_TYPE)
        if len(envelope) > MAX_MANIFEST_BYTES:
            raise ValueError(f"a manifest of {len(envelope)} bytes: at most {MAX_MANIFEST_BYTES}")
        part.write_bytes(envelope)
        sync(part)
        return Published(manifest, hashlib.sha256(envelope).hexdigest())

    def _put(self, objects: Mapping[str, Path]) -> None:
        """Renames temporary files to objects. Replaces objects of other processes, which may be damaged."""
        directory = self._store / "objects"
        for sha256, path in objects.items():
            target = self._store / object_path(sha256)
            if sha256 in self._objects and target.exists() and target.stat().st_size == path.stat().st_size:
                continue
            os.replace(path, target)
        sync(directory)

    def _remember(self, version: OpenVersion, offer: Offer) -> None:
        """Remembers the hashes and objects that the next version may reuse."""
        self._objects = set(offer.objects)
        if offer.full is not None:
            contents = (file.content for file in version.files)
            self._hashed = dict(zip(contents, offer.full.files, strict=True))

    def _become_base(self, version: OpenVersion) -> None:
        """Makes the version the base of the next delta, if deltas are written and it is the newest."""
        is_newest = self._base is None or version.version >= self._base.version
        if not self._deltas or not is_newest:
            version.close()
            return
        if self._base is not None:
            self._base.close()
        self._base = version
