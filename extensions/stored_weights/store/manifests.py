"""Fetches and verifies the signed manifests of a run's versions."""

import hashlib
from collections.abc import Mapping

from pydantic import ValidationError

from extensions.stored_weights.store.download import Transfer, TransferError, WrongBytesError, read_small
from extensions.stored_weights.store.errors import (
    BadDigestError,
    BadManifestError,
    BadSignatureError,
    StoreError,
)
from extensions.stored_weights.store.layout import manifest_path
from extensions.stored_weights.store.manifest import MAX_MANIFEST_BYTES, VersionManifest
from extensions.stored_weights.store.model_check import check_model, check_sizes
from extensions.stored_weights.store.signing import MANIFEST_TYPE, Verifier
from extensions.stored_weights.store.source_client import SourceClient


class ManifestReader:
    """Opens envelopes, and checks the manifests' signature, run and model."""

    def __init__(
        self,
        verifier: Verifier,
        run: str,
        shapes: Mapping[str, tuple[int, ...]] | None,
        tied: Mapping[str, str],
    ):
        """shapes: of the reader's model; None if it has none yet, and takes the manifest's."""
        self.run = run
        self._verifier = verifier
        self._shapes = shapes
        self._tied = tied

    def open(self, envelope: bytes, version: int) -> VersionManifest:
        """Returns the manifest of `version`. Raises BadSignatureError or BadManifestError."""
        payload = self._verifier.open(envelope, MANIFEST_TYPE)
        try:
            manifest = VersionManifest.model_validate_json(payload)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise BadManifestError(f"malformed: {where} {first['msg']}"[:500]) from error
        if manifest.run != self.run:
            raise BadSignatureError(f"a version of the run {manifest.run}, not of {self.run}")
        if manifest.version != version:
            raise BadManifestError(f"version {manifest.version}, not {version}")
        if self._shapes is not None:
            check_model(manifest, self._shapes, self._tied)
        check_sizes(manifest)
        return manifest


class Manifests:
    """Fetches the manifests of a run from its sources."""

    def __init__(self, client: SourceClient, reader: ManifestReader):
        self._client = client
        self._reader = reader

    async def named(self, version: int, manifest_sha256: str) -> VersionManifest:
        """Returns the manifest whose envelope has this SHA-256.

        Raises GoneError or NoSourceError, or another StoreError if the version is invalid.
        """

        async def fetch(transfer: Transfer) -> bytes:
            envelope = await self._envelope(transfer, version)
            if hashlib.sha256(envelope).hexdigest() != manifest_sha256:
                raise self._other(envelope, version)
            return envelope

        try:
            envelope = await self._client.obtain(f"the manifest of version {version}", fetch)
        except BadDigestError as error:
            raise BadManifestError(error.reason) from error
        return self._reader.open(envelope, version)

    async def before(self, version: int, digest: str) -> VersionManifest:
        """Returns the manifest of an earlier version with this digest. Raises StoreError."""

        async def fetch(transfer: Transfer) -> VersionManifest:
            envelope = await self._envelope(transfer, version)
            try:
                manifest = self._reader.open(envelope, version)
            except StoreError as error:
                raise TransferError(f"gave no manifest of the run: {error}") from error
            if manifest.digest != digest:
                raise WrongBytesError(f"gave a manifest of another version {version}")
            return manifest

        return await self._client.obtain(f"the manifest of version {version}", fetch)

    async def _envelope(self, transfer: Transfer, version: int) -> bytes:
        return await read_small(transfer, manifest_path(self._reader.run, version), MAX_MANIFEST_BYTES)

    def _other(self, envelope: bytes, version: int) -> TransferError:
        """Returns the error for an envelope with another SHA-256.

        It is a WrongBytesError only if the run has signed it. Otherwise it may be a proxy's error page.
        """
        try:
            self._reader.open(envelope, version)
        except StoreError:
            return TransferError("gave something else than the manifest")
        return WrongBytesError("gave another manifest, which the run has signed as well")
