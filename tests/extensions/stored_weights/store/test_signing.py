import base64
import json
import os
import tracemalloc

import pytest

from extensions.stored_weights.store.errors import BadManifestError, BadSignatureError
from extensions.stored_weights.store.signing import (
    LATEST_TYPE,
    MANIFEST_TYPE,
    MAX_SIGNATURES,
    SigningKey,
    Verifier,
)


@pytest.fixture
def key(tmp_path) -> SigningKey:
    return SigningKey.load_or_create(tmp_path / "key")


@pytest.fixture
def other(tmp_path) -> SigningKey:
    return SigningKey.load_or_create(tmp_path / "other")


def envelope(key: SigningKey, **changes) -> bytes:
    return json.dumps(json.loads(key.sign(b'{"a":1}', MANIFEST_TYPE)) | changes).encode()


def test_what_a_key_signed_is_opened(key, other):
    signed = key.sign(b'{"a":1}', MANIFEST_TYPE)
    assert Verifier([key.public]).open(signed, MANIFEST_TYPE) == b'{"a":1}'
    assert Verifier([other.public, key.public]).open(signed, MANIFEST_TYPE) == b'{"a":1}'
    assert key.sign(b'{"a":1}', MANIFEST_TYPE) == signed


def test_another_key_or_another_payload_is_refused(key, other):
    verifier = Verifier([other.public])
    with pytest.raises(BadSignatureError, match="no key of the run"):
        verifier.open(envelope(key), MANIFEST_TYPE)
    changed = envelope(key, payload=base64.b64encode(b'{"a":2}').decode())
    for signed in (changed, envelope(key, signatures=[])):
        with pytest.raises(BadSignatureError, match="no key of the run"):
            Verifier([key.public]).open(signed, MANIFEST_TYPE)


def test_a_manifest_does_not_pass_for_the_newest(key):
    verifier = Verifier([key.public])
    with pytest.raises(BadSignatureError, match="signed as"):
        verifier.open(envelope(key), LATEST_TYPE)
    with pytest.raises(BadSignatureError, match="no key of the run"):
        verifier.open(envelope(key, payloadType=LATEST_TYPE), LATEST_TYPE)


def test_only_so_many_signatures_are_tried(key, other):
    wrong = json.loads(envelope(other))["signatures"]
    right = json.loads(envelope(key))["signatures"]
    verifier = Verifier([key.public])
    verifier.open(envelope(key, signatures=wrong * (MAX_SIGNATURES - 1) + right), MANIFEST_TYPE)
    with pytest.raises(BadSignatureError):
        verifier.open(envelope(key, signatures=wrong * MAX_SIGNATURES + right), MANIFEST_TYPE)


MALFORMED = {
    "empty": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "nested": b"[" * 10**5,
    "many empty lists": b'{"a": [' + b"[]," * 10**6 + b"[]]}",
    "a list": b"[]",
    "a number": b"1",
    "no fields": b"{}",
    "no signatures": b'{"payload": "", "payloadType": "a"}',
    "payload of another type": b'{"payload": 1, "payloadType": "a", "signatures": []}',
    "payload no base64": b'{"payload": "?", "payloadType": "a", "signatures": []}',
    "type of another type": b'{"payload": "", "payloadType": 1, "signatures": []}',
    "signatures of another type": b'{"payload": "", "payloadType": "a", "signatures": 1}',
    "signatures an object": b'{"payload": "", "payloadType": "a", "signatures": {}}',
    "a signature of another type": b'{"payload": "", "payloadType": "a", "signatures": [1]}',
    "a signature no base64": b'{"payload": "", "payloadType": "a", "signatures": [{"sig": "?"}]}',
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_envelope_is_refused(key, fault):
    with pytest.raises(BadManifestError, match="no DSSE envelope"):
        Verifier([key.public]).open(MALFORMED[fault], MANIFEST_TYPE)


def test_refusing_an_envelope_that_nobody_signed_takes_little_memory(key):
    tracemalloc.start()
    with pytest.raises(BadManifestError, match="more than 1000 braces, brackets and commas"):
        Verifier([key.public]).open(MALFORMED["many empty lists"], MANIFEST_TYPE)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_key_stays_the_same_and_is_its_owners_alone(tmp_path, key):
    assert SigningKey.load_or_create(tmp_path / "key").public == key.public
    assert os.stat(tmp_path / "key").st_mode & 0o777 == 0o600
    assert SigningKey.load_or_create(tmp_path / "another").public != key.public


def test_a_file_without_a_key_is_refused(tmp_path):
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(ValueError, match="holds no Ed25519 key"):
        SigningKey.load_or_create(tmp_path / "key")
