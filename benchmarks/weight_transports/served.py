"""Compares what a run's servers say that they serve with what its key has signed, while the run goes on."""

import contextlib
import json
import urllib.request
from http.client import HTTPException
from pathlib import Path

from contracts.records import ServerJoined, StepClosed
from extensions.stored_weights.store.manifest import VersionManifest
from extensions.stored_weights.store.signing import MANIFEST_TYPE, SigningKey, Verifier
from pipelinerl.streams.events import recorded
from pipelinerl.streams.of_run import recorded_streams

ANSWERS_WITHIN_S = 5.0


class Served:
    """The digests of one run: those that servers have named, and those of signed manifests in its store."""

    def __init__(self, run_dir: Path, store: Path, token: str):
        self._run_dir = run_dir
        self._store = store
        self._token = token
        self.digests: set[str] = set()
        self.signed: set[str] = set()
        self.steps = 0

    def look(self) -> None:
        """Reads the store, asks the servers, and counts the steps."""
        if not (self._run_dir / "weights.key").exists():
            return
        self._read_manifests()
        with recorded_streams(self._run_dir) as streams:
            joined = [r for r in recorded(streams, "launcher_events") if isinstance(r, ServerJoined)]
            self.steps = sum(isinstance(r, StepClosed) for r in recorded(streams, "trainer_events"))
        for url in {record.url for record in joined}:
            with contextlib.suppress(OSError, HTTPException, ValueError):  # at the end they are gone
                self._ask(url)

    def _read_manifests(self) -> None:
        verifier = Verifier([SigningKey.load_or_create(self._run_dir / "weights.key").public])
        for path in self._store.glob("**/runs/*/[0-9]*.json"):  # a shared store is a directory in it
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                payload = verifier.open(path.read_bytes(), MANIFEST_TYPE)
                self.signed.add(VersionManifest.model_validate_json(payload).digest)

    def _ask(self, url: str) -> None:
        request = urllib.request.Request(
            f"{url}/contract", headers={"Authorization": f"Bearer {self._token}"}
        )
        with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN_S) as answer:
            digest = json.load(answer)["weights"]["digest"]
        if digest is not None:
            self.digests.add(digest)
