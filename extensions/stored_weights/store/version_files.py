"""Creates the files of a version's manifest: full files, a delta, or both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from extensions.stored_weights.store.delta import encode_delta
from extensions.stored_weights.store.local_files import sha256_of
from extensions.stored_weights.store.manifest import (
    DELTA_DTYPES,
    DeltaWeights,
    FullWeights,
    ModelFile,
    StoredFile,
)
from extensions.stored_weights.store.open_version import FileContent, OpenFile, OpenVersion

WORTHWHILE = 0.5  # a delta must be smaller than this share of the full files that changed


@dataclass
class Offer:
    """The files of a manifest. `objects`: SHA-256 -> temporary path of a file that becomes an object."""

    full: FullWeights | None = None
    delta: DeltaWeights | None = None
    model_files: list[ModelFile] = field(default_factory=list)
    objects: dict[str, Path] = field(default_factory=dict)


def add_full(offer: Offer, version: OpenVersion, hashed: Mapping[FileContent, StoredFile]) -> None:
    """Adds the full files. Files whose content is in `hashed` are not hashed again."""
    files = []
    for file in version.files:
        stored = hashed.get(file.content) or _stored(file.path, file.names)
        files.append(stored)
        offer.objects[stored.sha256] = file.path
    offer.full = FullWeights(files=files)


def add_delta(offer: Offer, version: OpenVersion, base: OpenVersion, directory: Path) -> None:
    """Adds a delta to the base, if one is possible and saves enough bytes."""
    if not version.is_of_the_model_of(base):
        return
    if any(parameter.dtype not in DELTA_DTYPES for parameter in version.parameters):
        return
    changed = [file for file in version.files if file.content not in base.contents]
    most = WORTHWHILE * sum(file.bytes for file in changed)
    deltas: dict[str, Path] = {}
    files: list[StoredFile] = []
    for number, file in enumerate(changed):
        path = directory / f"{number}.delta"
        if names := _encode(file, version, base, path):
            files.append(_stored(path, names))
            deltas[files[-1].sha256] = path
        if sum(stored.bytes for stored in files) >= most:
            return
    if changed:
        offer.delta = DeltaWeights(base_version=base.version, base_digest=base.digest, files=files)
        offer.objects |= deltas


def _encode(file: OpenFile, version: OpenVersion, base: OpenVersion, path: Path) -> list[str]:
    pairs = (
        (parameter, base.raw(parameter.name), version.raw(parameter.name))
        for parameter in file.content
        if parameter != base.by_name[parameter.name]
    )
    return encode_delta(pairs, path)


def _stored(path: Path, names: Sequence[str]) -> StoredFile:
    return StoredFile(sha256=sha256_of(path), bytes=path.stat().st_size, names=list(names))
