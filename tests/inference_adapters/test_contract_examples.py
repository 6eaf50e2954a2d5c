"""The numbers that the contract's page gives for stores are those of the code."""

import base64
import hashlib
import re
import struct
from pathlib import Path

import numpy as np
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from extensions.stored_weights.store.delta import encode_delta
from extensions.stored_weights.store.manifest import StoredParameter, digest_of
from extensions.stored_weights.store.signing import LATEST_TYPE, SigningKey, Verifier
from pipelinerl.paths import ROOT

PAGE = (ROOT / "docs" / "contract-weight-channels.md").read_text()


def test_the_signature_of_the_page_is_right():
    private, public = re.search(r"private key `(\w{64})` has the public key\s+`(\w{64})`", PAGE).groups()
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private)))
    assert key.public.ed25519 == public
    signed, signature = re.search(r"```\n(DSSEv1 .*)\n```\n\nis `(.*)`\.", PAGE).groups()
    payload = signed[signed.index("{") :]
    assert signed.split(" ")[1:4] == [str(len(LATEST_TYPE)), LATEST_TYPE, str(len(payload))]
    envelope = key.sign(payload.encode(), LATEST_TYPE)
    assert signature.encode() in envelope
    assert Verifier([key.public]).open(envelope, LATEST_TYPE) == payload.encode()
    assert len(base64.b64decode(signature)) == 64


def test_the_digests_of_the_page_are_right():
    of_bytes = hashlib.sha256(struct.pack("<2f", 1.0, -2.0)).hexdigest()
    parameter = StoredParameter(name="a", dtype="float32", shape=(2,), sha256=of_bytes)
    assert f"`{of_bytes}`" in PAGE and f"`{digest_of([parameter], {})}`" in PAGE


def test_the_delta_of_the_page_is_right(tmp_path: Path):
    old = np.full(8, 0x3F80, "<u2")
    new = old.copy()
    new[1] = 0x3F81
    new[6] = 0xBF80
    parameter = StoredParameter(name="a", dtype="bfloat16", shape=(8,), sha256="0" * 64)
    encode_delta([(parameter, old.view(np.uint8), new.view(np.uint8))], tmp_path / "delta")
    content = zstandard.ZstdDecompressor().decompress((tmp_path / "delta").read_bytes())
    gap, xor = re.search(r"`gap` is\s+`([\w ]+)` and `xor` is `([\w ]+)`", PAGE).groups()
    assert content.endswith(bytes.fromhex(gap) + bytes.fromhex(xor))
