"""The kit's store: valid and invalid versions of one run in a directory.

It does not use the store's writer, so that any part of a version can be wrong.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save

from contracts.conformance.inference.reference import Weights
from extensions.stored_weights.store.delta import encode_delta
from extensions.stored_weights.store.layout import latest_path, manifest_path, object_path
from extensions.stored_weights.store.manifest import (
    LatestVersion,
    StoredParameter,
    canonical,
    digest_of,
)
from extensions.stored_weights.store.signing import LATEST_TYPE, MANIFEST_TYPE, SigningKey

FILES = 3  # maximum number of files of a full version
Change = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Offer:
    """A version in the store."""

    version: int
    sha256: str  # of the signed manifest
    digest: str
    full: tuple[str, ...]  # SHA-256 of the full files
    delta: tuple[str, ...]  # SHA-256 of the delta's files
    parameters: tuple[StoredParameter, ...]
    weights: Weights
    manifest: Mapping[str, Any]


class KitStore:
    """The store of one run. `key` is the default key for signing."""

    def __init__(self, directory: Path, run: str, tied: Mapping[str, str]):
        self.directory = directory
        self.run = run
        self.tied = dict(tied)
        self.key = new_key()
        for folder in ("objects", f"runs/{run}", "proofs"):
            (directory / folder).mkdir(parents=True, exist_ok=True)

    def path(self, path: str) -> Path:
        return self.directory / path

    def object_bytes(self, names: Sequence[str]) -> int:
        """Returns the total size of these objects in bytes."""
        return sum(self.path(object_path(name)).stat().st_size for name in set(names))

    # --- versions

    def offer(
        self,
        version: int,
        weights: Weights,
        epoch: int = 0,
        base: Offer | None = None,
        full: bool = True,
        files: int = FILES,
        change: Change = dict,
        key: SigningKey | None = None,
    ) -> Offer:
        """Writes the files and the signed manifest of a version. Does not change `latest.json`.

        base: version to which a delta is also written.
        full: if False, there are no full files.
        change: changes the manifest before it is signed.
        """
        parameters = tuple(parameter_of(name, tensor) for name, tensor in weights.items())
        manifest: dict[str, Any] = {
            "format": 1,
            "run": self.run,
            "epoch": epoch,
            "version": version,
            "tied": self.tied,
            "parameters": [parameter.model_dump(mode="json") for parameter in parameters],
            "digest": digest_of(parameters, self.tied),
            "full": {"files": self._full_files(weights, files)} if full else None,
            "delta": self._delta(base, weights) if base else None,
            "model_files": [],
        }
        manifest = change(manifest)
        envelope = (key or self.key).sign(canonical(manifest), MANIFEST_TYPE)
        return Offer(
            version,
            self.put_manifest(version, envelope),
            manifest["digest"],
            _objects(manifest["full"]),
            _objects(manifest["delta"]),
            parameters,
            weights,
            manifest,
        )

    def announce(self, offer: Offer, key: SigningKey | None = None, **changes: Any) -> bytes:
        """Signs `latest.json` for a version, and returns its bytes. `changes` replace its fields."""
        fields = {
            "run": self.run,
            "epoch": offer.manifest["epoch"],
            "version": offer.version,
            "manifest_sha256": offer.sha256,
            "signed_at": int(time.time()),
        }
        latest = LatestVersion.model_validate(fields | changes)
        envelope = (key or self.key).sign(latest.canonical(), LATEST_TYPE)
        self.put(latest_path(self.run), envelope)
        return envelope

    # --- files

    def put(self, path: str, data: bytes) -> None:
        """Writes a file of the store atomically."""
        part = self.path(f"{path}.part")
        part.write_bytes(data)
        part.replace(self.path(path))

    def put_object(self, data: bytes) -> str:
        """Writes an object, and returns its SHA-256."""
        name = hashlib.sha256(data).hexdigest()
        self.put(object_path(name), data)
        return name

    def put_manifest(self, version: int, envelope: bytes) -> str:
        """Writes the envelope of a version's manifest, and returns its SHA-256."""
        self.put(manifest_path(self.run, version), envelope)
        return hashlib.sha256(envelope).hexdigest()

    def _full_files(self, weights: Weights, files: int) -> list[dict[str, Any]]:
        return [self.file_of({name: weights[name] for name in names}) for names in split(weights, files)]

    def file_of(self, tensors: Weights) -> dict[str, Any]:
        """Writes a safetensors file, and returns its entry in a manifest."""
        data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        return {"sha256": self.put_object(data), "bytes": len(data), "names": list(tensors)}

    def _delta(self, base: Offer, weights: Weights) -> dict[str, Any]:
        by_name = {parameter.name: parameter for parameter in base.parameters}
        pairs = [(by_name[n], raw(base.weights[n]).numpy(), raw(w).numpy()) for n, w in weights.items()]
        path = self.path("delta.part")
        names = encode_delta(pairs, path)
        data = path.read_bytes()
        path.unlink()
        file = {"sha256": self.put_object(data), "bytes": len(data), "names": names}
        return {
            "base_version": base.version,
            "base_digest": base.digest,
            "codec": "xor-gap-zstd/1",
            "files": [file],
        }


def new_key() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.generate())


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a tensor as `[bytes]` uint8."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def parameter_of(name: str, tensor: torch.Tensor) -> StoredParameter:
    """Returns the entry of a tensor in a manifest."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    digest = hashlib.sha256(raw(tensor).numpy().tobytes()).hexdigest()
    return StoredParameter.model_validate(
        {"name": name, "dtype": dtype, "shape": tuple(tensor.shape), "sha256": digest}
    )


def split(weights: Weights, files: int) -> list[list[str]]:
    """Returns the names of each file's weights, which are the same for all versions of a model."""
    names = sorted(weights)
    return [part for part in (names[i::files] for i in range(files)) if part]


def _objects(part: Mapping[str, Any] | None) -> tuple[str, ...]:
    return tuple(file["sha256"] for file in part["files"]) if part else ()
