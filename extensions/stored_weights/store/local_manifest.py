"""Reads a manifest from the directory of a store."""

import base64
import json
from pathlib import Path

from pydantic import ValidationError

from extensions.stored_weights.store.errors import BadManifestError
from extensions.stored_weights.store.manifest import MAX_MANIFEST_BYTES, VersionManifest
from extensions.stored_weights.store.signing import MANIFEST_TYPE, Verifier


def read_manifest(path: Path, verifier: Verifier | None) -> tuple[VersionManifest, bytes]:
    """Returns a manifest and its envelope. If `verifier` is None, the signature is not checked.

    Raises BadManifestError, BadSignatureError or FileNotFoundError.
    """
    with path.open("rb") as file:
        envelope = file.read(MAX_MANIFEST_BYTES + 1)
    if len(envelope) > MAX_MANIFEST_BYTES:
        raise BadManifestError(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes")
    payload = verifier.open(envelope, MANIFEST_TYPE) if verifier else unverified_payload(envelope)
    try:
        return VersionManifest.model_validate_json(payload), envelope
    except ValidationError as error:
        raise BadManifestError(f"{path}: {error.errors()[0]['msg']}") from error


def unverified_payload(envelope: bytes) -> bytes:
    """Returns an envelope's payload without checking signatures. Raises BadManifestError."""
    try:
        return base64.b64decode(json.loads(envelope)["payload"], validate=True)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise BadManifestError(f"no DSSE envelope: {error!r}"[:500]) from error
