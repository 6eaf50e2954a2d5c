"""The writer's side of `latest.json`, the signed name of a run's newest version, which never decreases."""

import os
import threading
import time
from pathlib import Path

from pydantic import ValidationError

from contracts.support.files import sync
from extensions.stored_weights.store.errors import BadManifestError
from extensions.stored_weights.store.layout import latest_path
from extensions.stored_weights.store.manifest import LatestVersion
from extensions.stored_weights.store.signing import LATEST_TYPE, SigningKey, Verifier


class LatestFile:
    """The file `latest.json` of a run. Its methods may be called in any thread."""

    def __init__(self, store: Path, run: str, key: SigningKey):
        """Raises BadSignatureError or BadManifestError if the file exists and this key has not signed it."""
        self._path = store / latest_path(run)
        self._run = run
        self._key = key
        self._lock = threading.Lock()
        self._newest = self._read()

    def _read(self) -> LatestVersion | None:
        try:
            payload = Verifier([self._key.public]).open(self._path.read_bytes(), LATEST_TYPE)
            return LatestVersion.model_validate_json(payload)
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise BadManifestError(f"{self._path}: {error.errors()[0]['msg']}") from error

    def check_not_older(self, version: int) -> None:
        """Raises ValueError if a newer version has been published."""
        if self._newest is not None and version < self._newest.version:
            raise ValueError(f"version {version} is older than the newest, {self._newest.version}")

    def prepare(self, version: int, manifest_sha256: str, epoch: int, part: Path) -> LatestVersion:
        """Writes the next content to the temporary file `part`, so that `replace` needs no disk space."""
        latest = LatestVersion(
            run=self._run,
            epoch=epoch,
            version=version,
            manifest_sha256=manifest_sha256,
            signed_at=int(time.time()),
        )
        self._write(latest, part)
        return latest

    def replace(self, latest: LatestVersion, part: Path) -> None:
        """Renames the prepared file to `latest.json`, unless that names a newer version."""
        with self._lock:
            if self._newest is None or latest.version >= self._newest.version:
                os.replace(part, self._path)
                self._newest = latest
                sync(self._path.parent)

    def renew(self, part: Path) -> None:
        """Signs the current content with the current time. Does nothing before the first version."""
        with self._lock:
            if self._newest is None:
                return
            self._newest = self._newest.model_copy(update={"signed_at": int(time.time())})
            try:
                self._write(self._newest, part)
                os.replace(part, self._path)
            finally:
                part.unlink(missing_ok=True)

    def _write(self, latest: LatestVersion, part: Path) -> None:
        part.write_bytes(self._key.sign(latest.canonical(), LATEST_TYPE))
        sync(part)
