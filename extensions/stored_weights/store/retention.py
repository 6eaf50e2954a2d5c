"""Deletes old versions from a store, and the objects that no manifest references."""

import json
import math
import re
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

from extensions.stored_weights.store.errors import BadManifestError
from extensions.stored_weights.store.layout import latest_path, manifest_path, stored_versions
from extensions.stored_weights.store.local_manifest import unverified_payload
from extensions.stored_weights.store.store_lock import locked

UNNAMED_S = 600.0  # a newer object without a manifest may belong to a version that is being published
MOST_BY_AGE = 4  # at most so many times `keep` versions are kept because of their age
DIGEST = re.compile(rb"[0-9a-f]{64}")
OBJECT = re.compile(r"[0-9a-f]{64}")  # names of objects; other files are never deleted


def retain(
    store: Path, run: str, keep: int, keep_s: float, now: float, pulled: Set[int] = frozenset()
) -> list[Path]:
    """Deletes old versions of a run, and returns the deleted files.

    Keeps the newest `keep` versions, up to four times as many that are newer than `keep_s` seconds, and those
    in `pulled`. The bases of their deltas are kept too. `now`: unix seconds.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}, but the newest version is always kept: 1 or more")
    with locked(store):
        versions = stored_versions(store, run)
        new = [v for v in versions[-MOST_BY_AGE * keep :] if now - _changed_at(store, run, v) < keep_s]
        kept = _with_bases(store, run, {*versions[-keep:], *new, *pulled})
        old = [store / manifest_path(run, version) for version in versions if version not in kept]
        return _delete(store, old, now)


def remove_run(store: Path, run: str, now: float) -> list[Path]:
    """Deletes all versions of a run that has ended, and returns the deleted files."""
    with locked(store):
        (store / latest_path(run)).unlink(missing_ok=True)
        return _delete(store, [store / manifest_path(run, v) for v in stored_versions(store, run)], now)


def remove_unnamed(store: Path) -> list[Path]:
    """Deletes all objects that no manifest references, and returns them.

    Must not be called while another process writes to the store.
    """
    with locked(store):
        return _delete(store, [], math.inf)


def _changed_at(store: Path, run: str, version: int) -> float:
    return (store / manifest_path(run, version)).stat().st_mtime


def _with_bases(store: Path, run: str, versions: Iterable[int]) -> set[int]:
    """Returns the versions and the bases of their deltas, down to versions with full files."""
    found: set[int] = set()
    following = list(versions)
    while following:
        version = following.pop()
        path = store / manifest_path(run, version)
        if version in found or not path.exists():
            continue
        found.add(version)
        manifest = _read(path)
        if manifest.get("full") is None and manifest.get("delta") is not None:
            following.append(manifest["delta"]["base_version"])
    return found


def _delete(store: Path, manifests: Iterable[Path], now: float) -> list[Path]:
    """Deletes manifests first and then objects, so that every remaining manifest keeps its objects."""
    deleted = []
    theirs: set[str] = set()
    for path in manifests:
        theirs |= _names(path)
        path.unlink()
        deleted.append(path)
    named: set[str] = set()
    for path in store.glob("runs/*/*.json"):
        named |= _names(path)
    objects = (path for path in (store / "objects").glob("*") if OBJECT.fullmatch(path.name))
    for path in filter(Path.is_file, objects):
        is_old = now - path.stat().st_mtime > UNNAMED_S
        if path.name not in named and (is_old or path.name in theirs):
            path.unlink()
            deleted.append(path)
    return deleted


def _names(manifest: Path) -> set[str]:
    """Returns all hashes in a manifest: those of its objects and, harmlessly, others."""
    return {found.decode() for found in DIGEST.findall(_payload(manifest))}


def _read(manifest: Path) -> dict[str, Any]:
    try:
        read = json.loads(_payload(manifest))
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}


def _payload(manifest: Path) -> bytes:
    """Returns a manifest's payload, or b"" if it is malformed and thus of no use to servers."""
    try:
        return unverified_payload(manifest.read_bytes())
    except BadManifestError:
        return b""
