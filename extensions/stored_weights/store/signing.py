"""Signs and verifies manifests: DSSE envelopes with Ed25519 signatures.

The format is https://github.com/secure-systems-lab/dsse, version 1. A payload is signed together with its
type, so a signed manifest is not a valid `latest.json`.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from contracts.channel import PublicKey
from contracts.support.files import write_atomically
from extensions.stored_weights.store.errors import BadManifestError, BadSignatureError

MANIFEST_TYPE = "application/vnd.pipelinerl.weights+json"
LATEST_TYPE = "application/vnd.pipelinerl.latest+json"
MAX_SIGNATURES = 16  # signatures of an envelope that are checked
MAX_STRUCTURE = 1000  # braces, brackets and commas of an envelope, to limit the memory of parsing


class SigningKey:
    """The private key of a run."""

    def __init__(self, private: Ed25519PrivateKey):
        self._private = private
        raw = private.public_key().public_bytes_raw()
        self.public = PublicKey(id=hashlib.sha256(raw).hexdigest()[:16], ed25519=raw.hex())

    @classmethod
    def load_or_create(cls, path: Path) -> "SigningKey":
        """Returns the key in the file. If it is missing, creates a key that only the owner can read.

        Raises ValueError if the file is not a key.
        """
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return cls._create(path)
        if len(raw) != 32:
            raise ValueError(f"{path} holds no Ed25519 key: 32 bytes")
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    @classmethod
    def _create(cls, path: Path) -> "SigningKey":
        private = Ed25519PrivateKey.generate()
        write_atomically(path, private.private_bytes_raw(), 0o600)
        return cls(private)

    def sign(self, payload: bytes, payload_type: str) -> bytes:
        """Returns the envelope of a payload, as JSON."""
        signature = self._private.sign(_signed_bytes(payload, payload_type))
        envelope = {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": [{"keyid": self.public.id, "sig": base64.b64encode(signature).decode()}],
        }
        return json.dumps(envelope, sort_keys=True).encode()


class Verifier:
    """Opens envelopes that are signed with one of its public keys."""

    def __init__(self, keys: Iterable[PublicKey]):
        """Raises ValueError unless each key has 32 bytes. It does not check that they are a valid key."""
        self._keys = [Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.ed25519)) for key in keys]

    def open(self, envelope: bytes, payload_type: str) -> bytes:
        """Returns the payload. Raises BadManifestError or BadSignatureError."""
        payload, kind, signatures = _parts(envelope)
        if kind != payload_type:
            raise BadSignatureError(f"signed as {kind[:100]!r}, not as {payload_type}")
        signed = _signed_bytes(payload, payload_type)
        for signature in signatures:
            if any(_verifies(key, signature, signed) for key in self._keys):
                return payload
        raise BadSignatureError("no key of the run has signed it")


def unverified(envelope: bytes) -> bytes:
    """Returns the payload of an envelope whose signature is not verified. Raises BadManifestError."""
    return _parts(envelope)[0]


def _parts(envelope: bytes) -> tuple[bytes, str, list[bytes]]:
    """Returns payload, type and signatures of an envelope. Raises BadManifestError if it is malformed."""
    if sum(envelope.count(mark) for mark in (b"{", b"[", b",")) > MAX_STRUCTURE:
        raise BadManifestError(f"no DSSE envelope: more than {MAX_STRUCTURE} braces, brackets and commas")
    try:
        read = json.loads(envelope)
        payload = base64.b64decode(read["payload"], validate=True)
        kind = read["payloadType"]
        listed = read["signatures"][:MAX_SIGNATURES]
        signatures = [base64.b64decode(each["sig"], validate=True) for each in listed]
    except (ValueError, RecursionError, KeyError, TypeError, IndexError, binascii.Error) as error:
        raise BadManifestError(f"no DSSE envelope: {error!r}") from error
    if not isinstance(kind, str):
        raise BadManifestError("no DSSE envelope: payloadType is no text")
    return payload, kind, signatures


def _verifies(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _signed_bytes(payload: bytes, payload_type: str) -> bytes:
    """Returns DSSE's pre-authentication encoding of type and payload, which is signed."""
    kind = payload_type.encode()
    return b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])
