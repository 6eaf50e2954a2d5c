"""Copies a stored version as a Hugging Face checkpoint, which transformers, vLLM and SGLang load.

    python -m extensions.stored_weights.store.checkpoint STORE RUN VERSION --out DIR

The version must have full files in the store. Every file is compared with its SHA-256 in the manifest. With
--key the manifest's signature is verified too.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path

from pydantic import ValidationError

from contracts.channel import PublicKey
from contracts.support.command_line import command_parser
from extensions.stored_weights.store.errors import BadDigestError, StoreError
from extensions.stored_weights.store.index import BUFFERS, BUFFERS_SHARD, shard_names, write_index
from extensions.stored_weights.store.layout import manifest_path, object_path, stored_versions
from extensions.stored_weights.store.local_manifest import read_manifest
from extensions.stored_weights.store.manifest import ModelFile, StoredFile, VersionManifest
from extensions.stored_weights.store.signing import Verifier
from extensions.stored_weights.store.tensor_file import check_tensor_file

COPY_BYTES = 2**20


class CheckpointError(Exception):
    """Raised if a version cannot be copied. The message is one line."""


def copy_checkpoint(store: Path, run: str, version: int, out: Path, verifier: Verifier | None) -> None:
    """Creates the directory `out` atomically.

    Raises CheckpointError if the version or the directory is not suitable, StoreError if a file differs from
    the manifest, and OSError.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} is there already: name a new directory")
    manifest = _full_manifest(store, run, version, verifier)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.part")
    unfinished.mkdir(parents=True)
    try:
        _fill(unfinished, store, manifest)
        os.replace(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


def _full_manifest(store: Path, run: str, version: int, verifier: Verifier | None) -> VersionManifest:
    """Returns the manifest of a version with full files. Raises CheckpointError if there is none."""
    try:
        manifest, _ = read_manifest(store / manifest_path(run, version), verifier)
    except FileNotFoundError as error:
        there = ", ".join(map(str, stored_versions(store, run))) or "none"
        raise CheckpointError(
            f"version {version} of {run} is not in {store}; versions that are: {there}"
        ) from error
    if manifest.full is None:
        assert manifest.delta is not None
        raise CheckpointError(
            f"version {version} is only stored as a delta of {manifest.delta.base_version}; name a full one"
        )
    return manifest


def _fill(directory: Path, store: Path, manifest: VersionManifest) -> None:
    assert manifest.full is not None
    parameters = {parameter.name: parameter for parameter in manifest.parameters}
    for file in manifest.model_files:
        _copy(store, file, directory / (BUFFERS_SHARD if file.name == BUFFERS else file.name))
    shards = dict(zip(shard_names(len(manifest.full.files)), manifest.full.files, strict=True))
    for name, shard in shards.items():
        _copy(store, shard, directory / name)
        check_tensor_file(directory / name, {held: parameters[held] for held in shard.names})
    write_index(directory, manifest, {name: shard.names for name, shard in shards.items()})


def _copy(store: Path, file: StoredFile | ModelFile, target: Path) -> None:
    """Copies an object. Raises BadDigestError if its SHA-256 is wrong."""
    digest = hashlib.sha256()
    with (store / object_path(file.sha256)).open("rb") as source, target.open("wb") as copy:
        while part := source.read(COPY_BYTES):
            digest.update(part)
            copy.write(part)
    if digest.hexdigest() != file.sha256:
        raise BadDigestError(f"the object {file.sha256} is damaged")


def main() -> None:
    """Copies the version that the command line names. Exits with a one-line message if that fails."""
    parser = command_parser("extensions.stored_weights.store.checkpoint", __doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("run")
    parser.add_argument("version", type=int)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new directory")
    parser.add_argument("--key", metavar="HEX", help="the public key that must have signed it")
    args = parser.parse_args()
    try:
        verifier = Verifier([PublicKey(id="key", ed25519=args.key)]) if args.key else None
    except (ValidationError, ValueError):
        parser.error("--key takes an Ed25519 key: 64 hexadecimal digits")
    try:
        copy_checkpoint(args.store, args.run, args.version, args.out, verifier)
    except (CheckpointError, StoreError, OSError) as error:
        sys.exit(f"cannot copy version {args.version}: {error}")
    print(f"version {args.version} of {args.run} is in {args.out}")


if __name__ == "__main__":
    main()
